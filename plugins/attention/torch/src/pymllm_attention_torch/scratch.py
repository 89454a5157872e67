"""Buffers that are used again and again: fresh memory of this size costs a page fault every 4 KiB."""

from __future__ import annotations

import math

import torch
from torch import Tensor


class Scratch:
    """Named buffers of one device, each as large as the largest request for it so far."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._buffers: dict[str, Tensor] = {}

    def take(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Uninitialized memory, contiguous; what was taken under this name before is no longer valid."""
        size = math.prod(shape)
        buffer = self._buffers.get(name)
        if buffer is None or buffer.dtype != dtype or buffer.numel() < size:
            self._buffers.pop(name, None)
            # Made outside inference mode, a buffer can be written in and outside of it.
            with torch.inference_mode(False):
                buffer = self._buffers[name] = torch.empty(size, dtype=dtype, device=self._device)
        return buffer[:size].view(shape)
