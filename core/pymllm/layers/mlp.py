"""The gated feed-forward block."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch.nn.functional as F
from torch import Tensor, nn

if TYPE_CHECKING:
    from pymllm.layers.context import BuildContext


def silu_and_mul(gate_up: Tensor) -> Tensor:
    """silu(gate) * up (SwiGLU, Shazeer 2020, eq. 6): [T, 2 I], gate then up -> [T, I]."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate).mul_(up)


class GatedMLP(nn.Module):
    """down(silu(gate(x)) * up(x)), gate and up fused into one projection. x: [T, C] -> [T, C]."""

    def __init__(self, context: BuildContext, hidden: int, intermediate: int, *, bias: bool = False) -> None:
        super().__init__()
        self.gate_up = context.linear(
            ("gate_proj", "up_proj"), hidden, (intermediate, intermediate), bias=bias, parallel="column"
        )
        self.down = context.linear("down_proj", intermediate, hidden, bias=bias, parallel="row")

    def forward(self, x: Tensor) -> Tensor:
        return self.down(silu_and_mul(self.gate_up(x)))
