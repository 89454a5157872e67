"""Arrays of several types, sent to the device together in one copy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from pymllm.engine.cuda.staging import RING

ALIGNMENT = 16
"""Arrays start at multiples of so many bytes."""

_TYPES = {np.dtype(np.int64): torch.int64, np.dtype(np.int32): torch.int32}

Field = tuple[int, type]
"""Elements of an array, and their NumPy type: int64 or int32."""


class PackedArrays:
    """Device memory that each step fills anew, from page-locked buffers that are used in turn.

    What was sent before is overwritten in order of the stream: steps may be in flight, their tensors not kept.
    """

    def __init__(self, device: torch.device, nbytes: int = 1 << 12) -> None:
        self._device = device
        self._turn = 0
        self._reserve(nbytes)

    def views(self, fields: Sequence[Field]) -> list[Tensor]:
        """The device tensors that :meth:`send` fills for arrays of these sizes. They stay where they are as long as no
        larger fields come."""
        places, end = _places(fields)
        if end > self._memory.numel():
            self._reserve(2 * end)
        return [
            self._memory[place : place + count * np.dtype(kind).itemsize].view(_TYPES[np.dtype(kind)])
            for place, (count, kind) in zip(places, fields)
        ]

    def send(self, arrays: Sequence[np.ndarray], fields: Sequence[Field]) -> list[Tensor]:
        """Copy arrays, each to the head of its field; the rest of a field is 0. On the current stream, without
        waiting. Returns ``views(fields)``."""
        tensors = self.views(fields)
        places, end = _places(fields)
        self._turn = (self._turn + 1) % RING
        host = self._host[self._turn]
        flat = host.numpy()
        for array, place, (count, kind) in zip(arrays, places, fields):
            field: np.ndarray = flat[place : place + count * np.dtype(kind).itemsize].view(kind)
            field[: len(array)] = array
            field[len(array) :] = 0
        self._memory[:end].copy_(host[:end], non_blocking=True)
        return tensors

    def _reserve(self, nbytes: int) -> None:
        # Buffers that a copy is still reading live on in PyTorch's caching allocator until it has ended.
        self._memory = torch.zeros(nbytes, dtype=torch.uint8, device=self._device)
        pinned = self._device.type == "cuda"
        self._host = [torch.zeros(nbytes, dtype=torch.uint8, pin_memory=pinned) for _ in range(RING)]


def _places(fields: Sequence[Field]) -> tuple[list[int], int]:
    """Where each field starts, and the end of the last, in bytes."""
    places, end = [], 0
    for count, kind in fields:
        places.append(end)
        end += -(-count * np.dtype(kind).itemsize // ALIGNMENT) * ALIGNMENT
    return places, end
