"""Operations on each row by itself: norms, and the product of SwiGLU."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from pymllm.layers.kernels.available import has_kernels


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last axis (Zhang & Sennrich 2019, eq. 4): [..., size] -> the same.

    The quotient is computed in float32 and rounded to x's dtype before it is multiplied, as transformers does.
    """
    if not x.is_cuda or not has_kernels(x.device):
        return F.rms_norm(x.float(), weight.shape, None, eps).to(x.dtype) * weight
    from pymllm.layers.kernels.rows_triton import launch_rms_norm

    x = x.contiguous()
    out = torch.empty_like(x)
    if x.numel():
        launch_rms_norm(x, weight, out, eps)
    return out


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float, offset: Tensor | None = None) -> Tensor:
    """(y - mean) / sqrt(variance + eps) * weight + bias of y = x + offset over the last axis (Ba et al. 2016, eq. 4):
    [..., size] -> the same. weight, bias: [size]; offset: [size] float32. Computed in float32, rounded once."""
    if not x.is_cuda or not has_kernels(x.device):
        if offset is None:
            return F.layer_norm(x, weight.shape, weight, bias, eps)
        return F.layer_norm(x.float() + offset, weight.shape, weight.float(), bias.float(), eps).to(x.dtype)
    from pymllm.layers.kernels.rows_triton import launch_layer_norm

    x = x.contiguous()
    out = torch.empty_like(x)
    if x.numel():
        launch_layer_norm(x, weight, bias, offset, out, eps)
    return out


def silu_and_mul(gate_up: Tensor) -> Tensor:
    """silu(gate) * up (SwiGLU, Shazeer 2020, eq. 6): [T, 2 I], gate then up -> [T, I]."""
    if not gate_up.is_cuda or not has_kernels(gate_up.device):
        gate, up = gate_up.chunk(2, dim=-1)
        return F.silu(gate).mul_(up)
    from pymllm.layers.kernels.rows_triton import launch_silu_and_mul

    rows, width = gate_up.shape
    out = gate_up.new_empty(rows, width // 2)
    if out.numel():
        launch_silu_and_mul(gate_up.contiguous(), out)
    return out
