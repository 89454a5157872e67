"""The method: which layers get 4-bit weights, and from where."""

from __future__ import annotations

from collections.abc import Hashable

import torch

from pymllm.interfaces import Linear, LinearSpec, QuantContext, QuantMethod, Unsupported, WeightMap
from pymllm.layers import FullPrecision
from pymllm_quant_w4a16.linear import W4A16Linear
from pymllm_quant_w4a16.plugin import W4A16Options
from pymllm_quant_w4a16.products import Scratch
from pymllm_quant_w4a16.readers import reader_of


class W4A16Method(QuantMethod):
    """4-bit weights of a quantized checkpoint, or made from full precision while loading.

    Raises PluginError, or CheckpointError, for a checkpoint that it cannot read.
    """

    def __init__(self, options: W4A16Options, context: QuantContext) -> None:
        self._reader = reader_of(options, context)
        self._scratch = Scratch(context.device, context.dtype)
        self._layers: list[W4A16Linear] = []

    def linear(self, spec: LinearSpec, weights: WeightMap) -> Linear:
        if spec.world > 1:
            raise Unsupported(f"layers cut over {spec.world} GPUs are not implemented")
        plan = self._reader.plan(spec)
        if plan is None:
            return FullPrecision().linear(spec, weights)
        layer = W4A16Linear(spec, plan.group, self._scratch)
        first = 0
        for name, width in zip(spec.names, spec.out_features):
            rows = slice(first, first + width)
            plan.bind(layer, name, rows, weights)
            if layer.bias is not None:
                weights.bind(f"{name}.bias", layer.bias[rows])
            first += width
        self._layers.append(layer)
        return layer

    def finalize(self) -> None:
        self._reader.finalize()
        self._scratch.allocate()

    @torch.inference_mode()
    def warmup(self) -> list[str]:
        done: set[Hashable] = set()
        for layer in self._layers:
            layer.warm(done)
        return [f"kernels of {len(done)} kinds of products with 4-bit weights compiled"] if done else []
