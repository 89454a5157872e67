"""How numbers lie in a KV cache that keeps them in a dtype of PyTorch's, which may be an 8-bit float.

PyTorch converts float8_e4m3fn everywhere, but indexes and copies rows of it only as bytes, and what it makes of numbers
beyond its range depends on the version. Triton converts it from compute capability 8.9 on.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor


def stored(x: Tensor, dtype: torch.dtype) -> Tensor:
    """x in a cache's dtype. What an 8-bit float cannot hold becomes the largest number it can (448 for
    float8_e4m3fn), of the same sign; NaN stays NaN."""
    if dtype.itemsize > 1:
        return x.to(dtype)
    most = torch.finfo(dtype).max
    return x.clamp(-most, most).to(dtype)


def rows_of(cache: Tensor) -> Tensor:
    """The same memory in a dtype whose rows PyTorch can index and copy."""
    return cache.view(torch.uint8) if cache.dtype.itemsize == 1 else cache


def kernel_cache(cache: Tensor) -> Tensor:
    """The same memory as Triton kernels take it (:mod:`pymllm.layers.kernels.storage_triton`): bytes instead of an
    8-bit float where the device, or the interpreter, has no conversion of it."""
    return cache if cache.dtype.itemsize > 1 or _converts_fp8(cache.device) else cache.view(torch.uint8)


@lru_cache
def _converts_fp8(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 9)
