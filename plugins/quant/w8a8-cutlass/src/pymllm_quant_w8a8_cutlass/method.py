"""The quantization method: which layers it makes, and how their weights are read."""

from __future__ import annotations

from pymllm.interfaces import Linear, LinearSpec, QuantContext, QuantMethod, WeightMap
from pymllm.layers import FullPrecision
from pymllm_quant_w8a8_cutlass.layer import W8A8Linear
from pymllm_quant_w8a8_cutlass.library import Library
from pymllm_quant_w8a8_cutlass.plugin import Kernels, W8A8Options
from pymllm_quant_w8a8_cutlass.products import describe
from pymllm_quant_w8a8_cutlass.schemes import check, check_ignored, read


class W8A8Method(QuantMethod):
    """Weights in 8-bit integers with a scale per output channel, activations rounded to 8 bits token by token.

    Reads compressed-tensors ``int-quantized`` checkpoints, and with ``online`` full-precision ones.
    Raises PluginError for any other.
    """

    def __init__(self, options: W8A8Options, context: QuantContext) -> None:
        self._options = options
        self._schemes = read(options, context)
        gpu = describe(context.device) if context.device.type == "cuda" else None
        self._library = Library(Kernels(options.kernels), gpu, context.dtype)

    def linear(self, spec: LinearSpec, weights: WeightMap) -> Linear:
        scheme = self._schemes.scheme(spec.names)
        if scheme is None:
            return FullPrecision().linear(spec, weights)
        check(spec, scheme)
        return W8A8Linear(spec, weights, library=self._library, online=self._options.online)

    def finalize(self) -> None:
        check_ignored(self._schemes, self._options)
        self._library.load()

    def warmup(self) -> list[str]:
        return list(self._library.built)
