"""What a device can do at best: the rates that a benchmark's figures are compared with.

Both are measured on the device itself, before the model is loaded, and are the best of several repeats:

bandwidth: copying a large tensor (1 GiB, 256 MiB on a CPU, but at most an eighth of the free memory) into another, as
PyTorch's ``copy_`` does it; bytes read plus bytes written, per second.
compute: a product of two square matrices of random numbers in the activations' dtype (8192 on a GPU, 2048 on a
CPU), 2 n^3 operations, per second. On a CPU it is the better of ``torch.mm`` and the layout that the linear
layers use (:mod:`pymllm.layers.packed`). A quantized model may compute in a faster type and exceed it.

A repeat is as many calls as take some 20 ms, between two waits for the device.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from pymllm.layers.packed import pack
from pymllm.memory.device import available_bytes

COPY_BYTES = {"cuda": 1 << 30, "cpu": 1 << 28}
MATRIX = {"cuda": 8192, "cpu": 2048}

REPEATS = 5
REPEAT_SECONDS = 0.02


@dataclass(frozen=True)
class Ceilings:
    """bandwidth: bytes a second. compute: floating-point operations a second. dtype: of the product."""

    bandwidth: float
    compute: float
    dtype: str


@torch.inference_mode()
def measure_ceilings(device: torch.device, dtype: torch.dtype) -> Ceilings:
    """Measure both; takes about a second. Memory that was used is given back."""
    found = Ceilings(_bandwidth(device), _compute(device, dtype), str(dtype).removeprefix("torch."))
    if device.type == "cuda":
        torch.cuda.empty_cache()
    return found


def synchronize(device: torch.device) -> None:
    """Wait until the device has done all that it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _bandwidth(device: torch.device) -> float:
    size = min(COPY_BYTES[device.type], available_bytes(device) // 8)
    source = torch.ones(max(1, size // 4), dtype=torch.float32, device=device)
    target = torch.empty_like(source)
    return 2 * 4 * source.numel() / best_seconds(lambda: target.copy_(source), device)


def _compute(device: torch.device, dtype: torch.dtype) -> float:
    size = MATRIX[device.type]
    left = torch.randn(size, size, device=device).to(dtype)
    right = torch.randn(size, size, device=device).to(dtype)
    out = torch.empty(size, size, dtype=dtype, device=device)
    ways: list[Callable[[], Tensor]] = [lambda: torch.mm(left, right, out=out)]
    packed = pack(right)
    if packed is not None:
        ways.append(lambda: packed(left))
    return 2 * size**3 / min(best_seconds(way, device) for way in ways)


def best_seconds(work: Callable[[], object], device: torch.device) -> float:
    """Seconds that a call takes at best."""
    for _ in range(2):
        synchronize(device)
        start = time.perf_counter()
        work()
        synchronize(device)
        once = time.perf_counter() - start
    calls = max(1, math.ceil(REPEAT_SECONDS / max(once, 1e-9)))
    best = once
    for _ in range(REPEATS):
        start = time.perf_counter()
        for _ in range(calls):
            work()
        synchronize(device)
        best = min(best, (time.perf_counter() - start) / calls)
    return best
