"""Weights in oneDNN's blocked layout: on a CPU, products with few rows then run at the speed of memory.

Measured with SmolLM2-135M on an AVX-512 machine: the linear layers of a bfloat16 decode step take about half
the time, float32 prefill less than half (where MKL's own kernels are slow). Where the layout is not to be had
(another device, dtype, CPU or build of PyTorch), the plain weight stays in use.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


class PackedWeight:
    """An opaque copy of a weight [out, in]; call it for x W^T + b. Made by :func:`pack`."""

    def __init__(self, weight: Tensor) -> None:
        self._tensor = torch.ops.mkldnn._reorder_linear_weight(weight, None)
        self._product = torch.ops.mkldnn._linear_pointwise

    def __call__(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """x: [T, in], bias: [out] -> [T, out]."""
        product: Tensor = self._product(x, self._tensor, bias, "none", [], "")
        return product


def pack(weight: Tensor) -> PackedWeight | None:
    """A packed copy of a weight [out, in], or None where packing is not possible or not right."""
    if weight.device.type != "cpu" or weight.dtype not in (torch.float32, torch.bfloat16):
        return None
    row = weight[:1]
    try:
        if weight.dtype == torch.bfloat16 and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
            return None
        packed = PackedWeight(weight)
        found = packed(row)
    except (AttributeError, RuntimeError):  # operators of PyTorch that are not part of its stable interface
        return None
    expected = F.linear(row, weight)
    bound = 0.01 * float(expected.abs().max())
    return packed if torch.allclose(found, expected, rtol=0.02, atol=bound) else None


def stand_in(weight: Tensor) -> Tensor:
    """A tensor of the weight's shape that takes one element of memory: what counts weights still counts it.
    It is NaN, so that computing with it shows."""
    return weight.new_full((), float("nan")).expand(weight.shape)
