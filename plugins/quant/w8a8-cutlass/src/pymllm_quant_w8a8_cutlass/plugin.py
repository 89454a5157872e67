"""What the plugin offers; nothing heavy is imported here."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from pymllm.plugin import QuantOptions, QuantSpec, hookimpl

DEFAULT_IGNORE = ("lm_head",)


class Kernels(str, Enum):
    """Which kernels multiply many rows on a GPU: CUTLASS where it can be built and is faster, or Triton alone."""

    auto = "auto"
    cutlass = "cutlass"
    triton = "triton"


@dataclass
class W8A8Options(QuantOptions):
    """online: quantize a full-precision checkpoint while it loads.
    ignore: with ``online``, modules that stay in full precision: names, or expressions that begin with "re:".
    kernels: "cutlass" is an error where CUTLASS cannot be built, "auto" then uses Triton and says why.
    """

    online: bool = False
    ignore: list[str] = field(default_factory=lambda: list(DEFAULT_IGNORE))
    kernels: Kernels = Kernels.auto


@hookimpl
def pymllm_quant() -> QuantSpec:
    return QuantSpec(
        config=W8A8Options,
        formats=("compressed-tensors/int-quantized",),
        factory="pymllm_quant_w8a8_cutlass.method:W8A8Method",
        summary="8-bit integer weights (per channel) and activations (per token), in Triton and CUTLASS kernels",
    )
