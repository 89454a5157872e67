"""What the plugin offers; nothing heavy is imported here."""

from dataclasses import dataclass, field

from pymllm.plugin import QuantOptions, QuantSpec, hookimpl

DEFAULT_SKIP = ("lm_head",)


@dataclass
class Int8Options(QuantOptions):
    """skip: shell patterns of module names that stay in full precision."""

    skip: list[str] = field(default_factory=lambda: list(DEFAULT_SKIP))


@hookimpl
def pymllm_quant() -> QuantSpec:
    return QuantSpec(
        config=Int8Options,
        formats=("int8-naive",),
        factory="pymllm_quant_int8_naive.method:Int8Method",
        summary="8-bit weights with one scale per output channel, quantized while loading",
    )
