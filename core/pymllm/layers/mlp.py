"""Feed-forward blocks."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

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
        return self.down.onto_gated(self.gate_up, h, norm)


class MLP(nn.Module):
    """fc2(gelu(fc1(x))), with biases, that of fc2 only if ``last_bias``.

    names: of the two layers. sizes: components of x, between the layers, and of the result.
    approximate: "tanh", or "none" for the exact GELU (Hendrycks & Gimpel 2016).
    """

    def __init__(
        self,
        context: BuildContext,
        names: tuple[str, str],
        sizes: tuple[int, int, int],
        *,
        approximate: Literal["none", "tanh"],
        last_bias: bool = True,
    ) -> None:
        super().__init__()
        self.fc1 = context.linear(names[0], sizes[0], sizes[1], bias=True, parallel="column")
        self.fc2 = context.linear(names[1], sizes[1], sizes[2], bias=last_bias, parallel="row")
        self._approximate: Literal["none", "tanh"] = approximate

    def forward(self, x: Tensor) -> Tensor:
        """x: [T, sizes[0]] -> [T, sizes[2]]."""
        return self.fc2(self.fc1.gelu(x, approximate=self._approximate))

    def onto(self, h: Tensor, norm: Callable[[Tensor], Tensor]) -> Tensor:
        """h: the residual stream, [T, C], may be overwritten; norm: the block's -> h plus the MLP of norm(h)."""
        return self.fc2.onto(self.fc1.gelu(h, norm, approximate=self._approximate), h)
