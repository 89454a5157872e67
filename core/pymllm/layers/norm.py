"""RMS norm."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class RMSNorm(nn.Module):
    """x / sqrt(mean(x^2) + eps) * weight over the last axis (Zhang & Sennrich 2019, eq. 4).

    The quotient is computed in float32 and rounded to x's dtype before it is multiplied, as transformers
    does. weight: [size].
    """

    weight: Tensor

    def __init__(self, size: int, eps: float, *, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__()
        self.eps = eps
        self.shape = (size,)
        self.weight = nn.Parameter(torch.empty(size, dtype=dtype, device=device), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        """x: [..., size] -> [..., size]."""
        return F.rms_norm(x.float(), self.shape, None, self.eps).to(x.dtype) * self.weight

    def add(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        """Add a block's output to the residual stream, then norm the sum: ([T, C], [T, C]) -> (normed, sum).

        One method, so that a fused kernel can take its place.
        """
        residual = residual + x
        return self(residual), residual
