"""The gated feed-forward block."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor, nn

from pymllm.layers.norm import RMSNorm

if TYPE_CHECKING:
    from pymllm.layers.context import BuildContext


class GatedMLP(nn.Module):
    """h + down(silu(gate(x)) * up(x)) with x = norm(h), gate and up fused into one projection."""

    def __init__(self, context: BuildContext, hidden: int, intermediate: int, *, bias: bool = False) -> None:
        super().__init__()
        self.gate_up = context.linear(
            ("gate_proj", "up_proj"), hidden, (intermediate, intermediate), bias=bias, parallel="column"
        )
        self.down = context.linear("down_proj", intermediate, hidden, bias=bias, parallel="row")

    def forward(self, h: Tensor, norm: RMSNorm) -> Tensor:
        """h: the residual stream, [T, C], may be overwritten; norm: the block's -> the stream after the block."""
        return self.down.onto(self.gate_up.gated(h, norm), h)
