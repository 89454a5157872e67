"""The norm and the rotation that the attention kit gives a layer."""

from __future__ import annotations

import torch
from torch import Tensor


class Norm:
    """An RMS norm that computes in float32."""

    def __init__(self, weight: Tensor, eps: float, device: torch.device) -> None:
        self.weight, self.eps = weight.to(device), eps

    def __call__(self, x: Tensor) -> Tensor:
        wide = x.float()
        return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps) * self.weight).to(x.dtype)


class Rotary:
    """A rotary embedding of 64 positions that computes in float32."""

    base = 1000.0

    def __init__(self, rotary_dim: int, device: torch.device) -> None:
        self.rotary_dim = rotary_dim
        angles = torch.arange(64.0)[:, None] * self.base ** (-torch.arange(rotary_dim // 2) * 2 / rotary_dim)
        self.cos_sin = torch.cat([angles.cos(), angles.sin()], -1).to(device)

    def __call__(self, q: Tensor, k: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        cos, sin = self.cos_sin[positions].unsqueeze(1).chunk(2, -1)
        half = self.rotary_dim // 2

        def turn(x: Tensor) -> Tensor:
            a, b, rest = x.float().split([half, half, x.shape[-1] - 2 * half], -1)
            return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], -1).to(x.dtype)

        return turn(q), turn(k)
