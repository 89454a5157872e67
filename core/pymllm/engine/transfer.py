"""Small host arrays to the device, and how many vocabulary rows to work on at once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

_CPU_ELEMENTS = 1 << 16
_GPU_ELEMENTS = 1 << 24


def to_device(array: np.ndarray, device: torch.device) -> Tensor:
    """A fresh host array as a tensor; the copy to a GPU does not block the host."""
    tensor = torch.from_numpy(array)
    return tensor if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)


def row_index(rows: Sequence[int], device: torch.device) -> Tensor | slice:
    """Rows (ascending, at least one) as an index: a slice, which copies nothing, if they lie side by side."""
    if rows[-1] - rows[0] + 1 == len(rows):
        return slice(rows[0], rows[-1] + 1)
    return to_device(np.array(rows, dtype=np.int64), device)


def rows_at_once(vocab_size: int, device: torch.device) -> int:
    """Rows of [rows, V] that fit a CPU's cache, or keep a GPU's scratch memory near half a gigabyte."""
    return max(1, (_CPU_ELEMENTS if device.type == "cpu" else _GPU_ELEMENTS) // vocab_size)
