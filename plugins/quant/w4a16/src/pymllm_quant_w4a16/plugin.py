"""What the plugin offers; nothing heavy is imported here."""

from __future__ import annotations

from dataclasses import dataclass, field

from pymllm.plugin import QuantOptions, QuantSpec, hookimpl

DEFAULT_IGNORE = ("lm_head",)
GROUP_SIZES = (128, 64, 32)
PER_CHANNEL = -1


@dataclass
class W4A16Options(QuantOptions):
    """Keys of ``quant`` under ``plugin: w4a16``.

    online: quantize a full-precision checkpoint while it loads, by rounding to nearest.
    group_size: weights that share a scale: 128, 64, 32, or -1 for a whole row. Of ``online``.
    symmetric: no zero points. Of ``online``.
    ignore: modules that stay in full precision: names, or expressions that begin with "re:". Of ``online``, and of
        GPTQ, whose checkpoints do not say which layers are quantized.
    """

    online: bool = False
    group_size: int = 128
    symmetric: bool = False
    ignore: list[str] = field(default_factory=lambda: list(DEFAULT_IGNORE))

    def __post_init__(self) -> None:
        if self.group_size not in (*GROUP_SIZES, PER_CHANNEL):
            raise ValueError(f"group_size must be 128, 64, 32 or -1 (a whole row), not {self.group_size}")


@hookimpl
def pymllm_quant() -> QuantSpec:
    return QuantSpec(
        config=W4A16Options,
        formats=("compressed-tensors/pack-quantized", "awq", "gptq"),
        factory="pymllm_quant_w4a16.method:W4A16Method",
        summary="4-bit weights in groups (compressed-tensors, AWQ, GPTQ, or online), 16-bit activations",
    )
