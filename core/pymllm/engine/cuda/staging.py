"""Pinned host memory for what a step sends to the device and gets back."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

RING = 4
"""Host buffers in turn. A buffer is written again four steps later; at most two steps are in flight, so its
copy has long ended."""


class StagedRows:
    """A static device tensor [rows, width] of int64 that is filled from the host without waiting.

    Rows may also carry floats of 8 or 4 bytes (:meth:`floats`), so that a step needs a single copy.
    """

    def __init__(self, rows: int, width: int, device: torch.device) -> None:
        self.device = torch.zeros(rows, width, dtype=torch.int64, device=device)
        self._host = [torch.zeros(rows, width, dtype=torch.int64, pin_memory=True) for _ in range(RING)]
        self._turn = 0

    def next(self) -> np.ndarray:
        """The host array [rows, width] to fill for the next step; what it held is void."""
        self._turn = (self._turn + 1) % RING
        array: np.ndarray = self._host[self._turn].numpy()
        return array

    def send(self) -> None:
        """Copy the array that ``next`` gave to the device, on the current stream."""
        self.device.copy_(self._host[self._turn], non_blocking=True)


def to_device(array: np.ndarray, device: torch.device) -> Tensor:
    """A host array as a device tensor, without waiting; PyTorch keeps the pinned copy until it was read."""
    return torch.from_numpy(np.ascontiguousarray(array)).pin_memory().to(device, non_blocking=True)


class Answer:
    """A device tensor on its way to the host."""

    def __init__(self, tensor: Tensor) -> None:
        self._host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        self._host.copy_(tensor, non_blocking=True)
        self._arrived = torch.cuda.Event()
        self._arrived.record()

    def wait(self) -> Tensor:
        """The host copy, once it is there."""
        self._arrived.synchronize()
        return self._host
