"""Linear layers in full precision."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pymllm.errors import PluginError
from pymllm.interfaces.quant import Linear, LinearSpec, QuantContext, QuantMethod
from pymllm.interfaces.weights import WeightMap
from pymllm.layers.fused import FusedProducts, fuse
from pymllm.layers.norm import RMSNorm
from pymllm.layers.packed import PackedWeight, pack, stand_in


class FullPrecisionLinear(Linear):
    """y = x W^T + b with one fused weight.

    weight: [sum(out_features), in_features], the partitions of a fused projection below one another;
    bias: [sum(out_features)] or None; both in the spec's dtype, to which a checkpoint's is cast. ``finalize`` makes it
    fast: on a CPU that can, it packs the weight (:mod:`pymllm.layers.packed`) and leaves a stand-in of its shape; on a
    GPU it chooses kernels (:mod:`pymllm.layers.fused`), which fuse a norm, an activation and the residual.
    """

    weight: Tensor
    bias: Tensor | None

    def __init__(self, spec: LinearSpec, weights: WeightMap) -> None:
        super().__init__()
        self._packed: PackedWeight | None = None
        self._fused: FusedProducts | None = None
        rows = sum(spec.out_features)
        self.weight = _empty(spec, rows, spec.in_features)
        self.bias = _empty(spec, rows) if spec.bias else None
        for name, part in zip(spec.names, self.weight.split(spec.out_features)):
            weights.bind(f"{name}.weight", part)
        if self.bias is not None:
            for name, part in zip(spec.names, self.bias.split(spec.out_features)):
                weights.bind(f"{name}.bias", part)

    def forward(self, x: Tensor) -> Tensor:
        if self._packed is not None:
            return self._packed(x, self.bias)
        if self._fused is not None:
            return self._fused.plain(x, self.weight, self.bias)
        return F.linear(x, self.weight, self.bias)

    def after_norm(self, h: Tensor, norm: Callable[[Tensor], Tensor]) -> Tensor:
        if self._fused is not None and isinstance(norm, RMSNorm):
            return self._fused.after_norm(h, norm, self.weight, self.bias)
        return super().after_norm(h, norm)

    def gated(self, h: Tensor, norm: Callable[[Tensor], Tensor] | None = None) -> Tensor:
        if self._fused is not None and isinstance(norm, RMSNorm):
            return self._fused.gated(h, norm, self.weight, self.bias)
        return super().gated(h, norm)

    def gelu(
        self,
        h: Tensor,
        norm: Callable[[Tensor], Tensor] | None = None,
        *,
        approximate: Literal["none", "tanh"],
    ) -> Tensor:
        if self._fused is None or self.bias is None or approximate != "tanh":
            return super().gelu(h, norm, approximate=approximate)
        return self._fused.gelu(h if norm is None else norm(h), self.weight, self.bias)

    def onto(self, x: Tensor, h: Tensor) -> Tensor:
        if self._fused is not None:
            return self._fused.onto(x, h, self.weight, self.bias)
        return super().onto(x, h)

    def finalize(self) -> None:
        if self._packed is None:
            self._packed = pack(self.weight)
            if self._packed is not None:
                self.weight = nn.Parameter(stand_in(self.weight), requires_grad=False)
        if self._fused is None:
            self._fused = fuse(self.weight)
            if self._fused is not None:
                self.fusions = frozenset({"norm", "activation", "residual"})


class FullPrecision(QuantMethod):
    """The method of ``quant: none``, and of every layer that another method cannot serve.

    Raises PluginError when it is asked to serve a quantized checkpoint.
    """

    def __init__(self, options: object = None, context: QuantContext | None = None) -> None:
        if context is not None and context.checkpoint is not None:
            name = context.checkpoint.get("quant_method", "unknown")
            raise PluginError(f"the checkpoint is quantized ({name}): set quant.plugin to a method that reads it")

    def linear(self, spec: LinearSpec, weights: WeightMap) -> FullPrecisionLinear:
        """Any layer of one GPU. Raises PluginError for a layer cut over several."""
        if spec.world > 1:
            raise PluginError(f"{spec.names[0]}: tensor parallelism (world {spec.world}) is not available, use one GPU")
        return FullPrecisionLinear(spec, weights)


def _empty(spec: LinearSpec, *shape: int) -> nn.Parameter:
    return nn.Parameter(torch.empty(*shape, dtype=spec.dtype, device=spec.device), requires_grad=False)
