"""Symmetric 8-bit weights: w is about q * s, with s = max |w| / 127 of each output channel."""

from __future__ import annotations

from fnmatch import fnmatchcase

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pymllm.errors import PluginError
from pymllm.interfaces import Linear, LinearSpec, QuantContext, QuantMethod, Unsupported, WeightMap
from pymllm_quant_int8_naive.plugin import DEFAULT_SKIP, Int8Options


def quantize(weight: Tensor) -> tuple[Tensor, Tensor]:
    """[out, in] -> int8 [out, in] and float32 scales [out, 1]. A row of zeros gets the scale 1."""
    largest = weight.float().abs().amax(dim=1, keepdim=True)
    scale = torch.where(largest > 0, largest / 127, 1.0)
    return (weight.float() / scale).round().to(torch.int8), scale


class Int8Linear(Linear):
    """weight: int8 [sum(out_features), in_features]; scale: float32 [sum(out_features), 1]; bias: as the spec says."""

    weight: Tensor
    scale: Tensor
    bias: Tensor | None

    def __init__(self, spec: LinearSpec, weights: WeightMap) -> None:
        super().__init__()
        rows, device = sum(spec.out_features), spec.device
        self.register_buffer("weight", torch.empty(rows, spec.in_features, dtype=torch.int8, device=device))
        self.register_buffer("scale", torch.empty(rows, 1, device=device))
        self.bias = None
        if spec.bias:
            self.bias = nn.Parameter(torch.empty(rows, dtype=spec.dtype, device=device), requires_grad=False)
        first = 0
        for name, width in zip(spec.names, spec.out_features):
            self._bind(name, slice(first, first + width), weights)
            first += width

    def _bind(self, name: str, rows: slice, weights: WeightMap) -> None:
        def load(source: Tensor) -> None:
            self.weight[rows], self.scale[rows] = quantize(source.to(self.weight.device))

        weights.bind_to(f"{name}.weight", tuple(self.weight[rows].shape), load)
        if self.bias is not None:
            weights.bind(f"{name}.bias", self.bias[rows])

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, (self.weight * self.scale).to(x.dtype), self.bias)


class Int8Method(QuantMethod):
    """Quantizes every linear layer that ``skip`` does not name, while it is loaded."""

    def __init__(self, options: Int8Options, context: QuantContext) -> None:
        checkpoint = dict(context.checkpoint or {"quant_method": "int8-naive"})
        if (method := checkpoint.pop("quant_method", None)) != "int8-naive":
            raise PluginError(f"quant.plugin int8-naive reads full-precision weights, the checkpoint's are {method}")
        self._skip = [*options.skip, *checkpoint.pop("skip", [])]
        if checkpoint:
            raise PluginError(f"quantization_config of int8-naive takes only 'skip', not {', '.join(checkpoint)}")
        self._unmatched = set(self._skip) - set(DEFAULT_SKIP)

    def linear(self, spec: LinearSpec, weights: WeightMap) -> Linear:
        if spec.world > 1:
            raise Unsupported(f"layers cut over {spec.world} GPUs are not implemented")
        matches = [entry for entry in self._skip if any(fnmatchcase(name, entry) for name in spec.names)]
        self._unmatched.difference_update(matches)
        if matches:
            raise Unsupported(f"quant.skip names it ('{matches[0]}')")
        return Int8Linear(spec, weights)

    def finalize(self) -> None:
        if self._unmatched:
            entries = ", ".join(f"'{entry}'" for entry in sorted(self._unmatched))
            raise PluginError(f"no linear layer matches {entries} of quant.skip: correct or remove it")
