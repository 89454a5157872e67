"""Norms over the components of a token."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from pymllm.layers.kernels import layer_norm, rms_norm


class RMSNorm(nn.Module):
    """x / sqrt(mean(x^2) + eps) * weight over the last axis (Zhang & Sennrich 2019, eq. 4).

    The quotient is computed in float32 and rounded to x's dtype before it is multiplied, as transformers
    does. weight: [size].
    """

    weight: Tensor

    def __init__(self, size: int, eps: float, *, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(size, dtype=dtype, device=device), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        """x: [..., size] -> [..., size]."""
        return rms_norm(x, self.weight, self.eps)


class LayerNorm(nn.Module):
    """(x - mean) / sqrt(variance + eps) * weight + bias over the last axis (Ba et al. 2016, eq. 4), in float32.
    weight, bias: [size]."""

    weight: Tensor
    bias: Tensor

    def __init__(self, size: int, eps: float, *, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(size, dtype=dtype, device=device), requires_grad=False)
        self.bias = nn.Parameter(torch.empty(size, dtype=dtype, device=device), requires_grad=False)

    def forward(self, x: Tensor, offset: Tensor | None = None) -> Tensor:
        """x: [..., size]; offset: [size] float32, added to x first -> [..., size]."""
        return layer_norm(x, self.weight, self.bias, self.eps, offset)
