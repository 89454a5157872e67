"""Where the kernels of this package can run."""

from __future__ import annotations

import importlib.util
from functools import lru_cache

import torch


@lru_cache
def has_kernels(device: torch.device) -> bool:
    """Whether Triton kernels run on a device: a GPU of compute capability 8.0 or above, where Triton is installed.
    Elsewhere plain PyTorch computes the same."""
    if device.type != "cuda" or torch.version.hip is not None:
        return False
    return importlib.util.find_spec("triton") is not None and torch.cuda.get_device_capability(device) >= (8, 0)
