"""The kinds of quantized checkpoints that can be made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Method = Literal["nearest", "awq", "gptq", "smoothquant"]


@dataclass(frozen=True)
class Scheme:
    """bits: of weights; with 8, activations are quantized to as many, per token, while the model runs. symmetric:
    without zero points. method: how rounding is chosen; "smoothquant" is followed by GPTQ."""

    name: str
    bits: Literal[4, 8]
    symmetric: bool
    method: Method
    summary: str

    @property
    def calibrated(self) -> bool:
        """Whether it needs calibration data."""
        return self.method != "nearest"


SCHEMES = {
    scheme.name: scheme
    for scheme in (
        Scheme("w8a8", 8, True, "smoothquant", "int8 weights and activations: SmoothQuant, then GPTQ"),
        Scheme("w8a8-rtn", 8, True, "nearest", "int8 weights and activations, round to nearest, no calibration"),
        Scheme("w4a16", 4, True, "awq", "int4 weights in groups: AWQ"),
        Scheme("w4a16-asym", 4, False, "awq", "int4 weights in groups with zero points: AWQ"),
        Scheme("w4a16-rtn", 4, True, "nearest", "int4 weights in groups, round to nearest, no calibration"),
        Scheme("gptq", 4, True, "gptq", "int4 weights in groups: GPTQ"),
    )
}
