"""Symmetric 8-bit integers with one float32 scale a row, and their exact product, in plain PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor

LARGEST = 127
"""Of the integers that rounding gives; -128 is left out, so that both signs are alike."""

SMALLEST = 2.0**-126
"""Of the scales: float32 has reciprocals of these and larger ones only."""

EXACT_TERMS = 1024
"""Products of two 8-bit integers are at most 2^14, and float32 holds every integer up to 2^24."""


def quantize_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """[T, K] -> int8 [T, K] and float32 scales [T], x about the one times the other.

    In float32: scale = max |x| / 127 of the row, x times 1 / scale rounded half to even. A row of zeros gets the scale
    1 (so does one of numbers too small for a scale), one that is not finite a scale that is not.
    """
    x = x.float()
    scale = x.abs().amax(dim=1) / LARGEST
    scale = torch.where(scale < SMALLEST, 1.0, scale)
    return (x * (1.0 / scale)[:, None]).clamp_(-LARGEST, LARGEST).round_().to(torch.int8), scale


def integer_product(x: Tensor, weight: Tensor) -> Tensor:
    """x: int8 [T, K], weight: int8 [N, K] -> x W^T, int32 [T, N], exact."""
    if len(x) == 1 and x.device.type == "cpu":
        return torch._int_mm(x, weight.t())
    total = torch.zeros(len(x), len(weight), dtype=torch.int32, device=x.device)
    # Sums of so few terms are exact in float32, for which CPUs have fast products.
    for a, b in zip(x.split(EXACT_TERMS, 1), weight.split(EXACT_TERMS, 1)):
        total += (a.float() @ b.float().t()).to(torch.int32)
    return total


def scaled_product(
    x: Tensor, x_scale: Tensor, weight: Tensor, weight_scale: Tensor, bias: Tensor | None, dtype: torch.dtype
) -> Tensor:
    """x: int8 [T, K], weight: int8 [N, K], their scales [T] and [N], bias: [N] or None -> [T, N] of ``dtype``.
    Scaled and summed in float32, rounded once."""
    y = integer_product(x, weight).float() * x_scale[:, None] * weight_scale
    return (y if bias is None else y + bias.float()).to(dtype)
