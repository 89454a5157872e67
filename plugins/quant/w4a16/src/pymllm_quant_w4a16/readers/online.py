"""Quantizing full-precision weights while they load, each group by rounding to nearest."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import torch
from torch import Tensor

from pymllm.interfaces import LinearSpec, Unsupported, WeightMap
from pymllm_quant_w4a16.layout import SYMMETRIC
from pymllm_quant_w4a16.linear import W4A16Linear
from pymllm_quant_w4a16.plugin import GROUP_SIZES, PER_CHANNEL, W4A16Options
from pymllm_quant_w4a16.readers.base import Ignored, Plan, Reader

logger = logging.getLogger(__name__)

ROWS = 2048
"""Of a weight that are quantized at a time, to bound what that takes."""


def quantize(weight: Tensor, group: int, *, symmetric: bool, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """[N, K] -> codes uint8 [N, K], scales float32 [N, K / group], zeros uint8 of the same shape.

    Asymmetric: 15 steps from the least to the largest number, 0 among them; symmetric: steps of max |w| / 7.5, as
    compressed-tensors has them. Scales are numbers of dtype; a group of zeros gets the least.
    """
    groups = weight.float().unflatten(1, (-1, group))
    if symmetric:
        steps = groups.abs().amax(2) / 7.5
    else:
        least, most = groups.amin(2).clamp(max=0), groups.amax(2).clamp(min=0)
        steps = (most - least) / 15
    limits = torch.finfo(dtype)
    scales = steps.clamp(limits.tiny, limits.max).to(dtype).float()
    zeros = torch.full_like(scales, SYMMETRIC) if symmetric else (-least / scales).round().clamp(0, 15)
    codes = ((groups / scales.unsqueeze(2)).round() + zeros.unsqueeze(2)).clamp(0, 15)
    return codes.flatten(1).to(torch.uint8), scales, zeros.to(torch.uint8)


@dataclass(frozen=True)
class BindOnline:
    """Binds a partition's full-precision weight."""

    group: int
    symmetric: bool
    dtype: torch.dtype

    def __call__(self, layer: W4A16Linear, name: str, rows: slice, weights: WeightMap) -> None:
        def load(source: Tensor) -> None:
            for start in range(0, len(source), ROWS):
                part = source[start : start + ROWS].to(layer.words.device)
                codes, scales, zeros = quantize(part, self.group, symmetric=self.symmetric, dtype=self.dtype)
                place = slice(rows.start + start, rows.start + start + len(part))
                layer.put_codes(place, codes)
                layer.put_scales(place, scales)
                layer.put_zeros(place, zeros)

        weights.bind_to(f"{name}.weight", (rows.stop - rows.start, layer.in_features), load)


class OnlineReader(Reader):
    """Of a full-precision checkpoint."""

    def __init__(self, options: W4A16Options) -> None:
        self._options = options
        self._ignored = Ignored(options.ignore)

    def plan(self, spec: LinearSpec) -> Plan | None:
        if self._ignored.takes(spec.names):
            return None
        group = self._group(spec)
        return Plan(group, BindOnline(group, self._options.symmetric, spec.dtype))

    def finalize(self) -> None:
        self._ignored.finalize()

    def _group(self, spec: LinearSpec) -> int:
        wanted, terms = self._options.group_size, spec.in_features
        if wanted == PER_CHANNEL:
            return terms
        for size in GROUP_SIZES:
            if size <= wanted and terms % size == 0:
                if size != wanted:
                    names = " + ".join(spec.names)
                    logger.info("%s: groups of %d, since %d does not divide %d inputs", names, size, wanted, terms)
                return size
        raise Unsupported(f"{terms} inputs are not a multiple of 32, the smallest group")
