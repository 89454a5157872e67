"""A linear layer of 8-bit integers."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from pymllm.errors import CheckpointError
from pymllm.interfaces import Linear, LinearSpec, WeightMap, always, any_integers
from pymllm.layers import RMSNorm
from pymllm_quant_w8a8_cutlass.library import Library
from pymllm_quant_w8a8_cutlass.products import Products, products_of
from pymllm_quant_w8a8_cutlass.rounding import quantize_rows, scaled_product
from pymllm_quant_w8a8_cutlass.tilings import GATED_ROWS

USUAL_SCALE = 0.02 / 73.9
"""Makes numbers of standard deviation 0.02 of integers of which all are alike."""


class W8A8Linear(Linear):
    """y = (x_q W_q^T) * x_scale * weight_scale + b, x_q and x_scale rounded from x row by row.

    weight: int8 [sum(out_features), in_features]; weight_scale: float32 [sum(out_features)]; bias: [sum(out_features)]
    of the spec's dtype, or None. The partitions of a fused projection lie below one another.
    """

    weight: Tensor
    weight_scale: Tensor
    bias: Tensor | None

    def __init__(self, spec: LinearSpec, weights: WeightMap, *, library: Library, online: bool) -> None:
        super().__init__()
        self._library = library
        self._products: Products | None = None
        rows = sum(spec.out_features)
        self.weight = _empty(spec, torch.int8, rows, spec.in_features)
        self.weight_scale = _empty(spec, torch.float32, rows)
        self.bias = _empty(spec, spec.dtype, rows) if spec.bias else None
        first = 0
        for name, width in zip(spec.names, spec.out_features):
            part = slice(first, first + width)
            (self._bind_online if online else self._bind)(name, part, weights)
            if self.bias is not None:
                weights.bind(f"{name}.bias", self.bias[part])
            first += width

    def _bind(self, name: str, part: slice, weights: WeightMap) -> None:
        weight, scale = self.weight[part], self.weight_scale[part]

        def load(source: Tensor) -> None:
            if source.dtype != torch.int8:
                kind = str(source.dtype).removeprefix("torch.")
                raise CheckpointError(
                    f"{name}.weight is {kind}, but quantization_config says int8: the two do not belong together"
                )
            weight.copy_(source)

        def load_scale(source: Tensor) -> None:
            scale.copy_(source[:, 0])

        shape = tuple(weight.shape)
        weights.bind_to(f"{name}.weight", shape, load, draw=any_integers(shape, torch.int8))
        weights.bind_to(f"{name}.weight_scale", (len(scale), 1), load_scale, draw=always(USUAL_SCALE, (len(scale), 1)))

    def _bind_online(self, name: str, part: slice, weights: WeightMap) -> None:
        weight, scale = self.weight[part], self.weight_scale[part]

        def load(source: Tensor) -> None:
            rounded, scales = quantize_rows(source.to(weight.device))
            weight.copy_(rounded)
            scale.copy_(scales)

        weights.bind_to(f"{name}.weight", tuple(weight.shape), load)

    def forward(self, x: Tensor) -> Tensor:
        if self._products is not None:
            return self._products.plain(x)
        rounded, scale = quantize_rows(x)
        return scaled_product(rounded, scale, self.weight, self.weight_scale, self.bias, x.dtype)

    def after_norm(self, h: Tensor, norm: Callable[[Tensor], Tensor]) -> Tensor:
        if self._products is not None and isinstance(norm, RMSNorm):
            return self._products.after_norm(h, norm)
        return super().after_norm(h, norm)

    def gated(self, h: Tensor, norm: Callable[[Tensor], Tensor] | None = None) -> Tensor:
        if self._products is not None and (norm is None or isinstance(norm, RMSNorm)):
            return self._products.gated(h, norm)
        return super().gated(h, norm)

    def onto(self, x: Tensor, h: Tensor) -> Tensor:
        if self._products is not None:
            return self._products.onto(x, h)
        return super().onto(x, h)

    def onto_gated(self, gate_up: Linear, h: Tensor, norm: Callable[[Tensor], Tensor] | None = None) -> Tensor:
        if self._products is None or len(h) <= GATED_ROWS or not isinstance(gate_up, W8A8Linear):
            return super().onto_gated(gate_up, h, norm)
        return self._products.onto_gated(gate_up(h) if norm is None else gate_up.after_norm(h, norm), h)

    def finalize(self) -> None:
        if self._products is None:
            self._products = products_of(self.weight, self.weight_scale, self.bias, self._library)
            if self._products is not None:
                self.fusions = frozenset({"norm", "activation", "residual"})


def _empty(spec: LinearSpec, dtype: torch.dtype, *shape: int) -> nn.Parameter:
    return nn.Parameter(torch.empty(*shape, dtype=dtype, device=spec.device), requires_grad=False)
