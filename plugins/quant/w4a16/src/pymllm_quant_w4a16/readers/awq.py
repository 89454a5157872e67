"""AutoAWQ, layout "gemm": codes along the outputs, eight a word, in the order 0 2 4 6 1 3 5 7.

The format: AutoAWQ 0.2, ``awq/modules/linear/gemm.py`` and ``utils/packing_utils.py``.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from pymllm.errors import PluginError
from pymllm.interfaces import LinearSpec, Unsupported, WeightMap
from pymllm_quant_w4a16.linear import W4A16Linear
from pymllm_quant_w4a16.readers.base import Plan, Reader, bind_codes, bind_scales, group_of, nibbles, require, typed

logger = logging.getLogger(__name__)

PLACES = (0, 4, 1, 5, 2, 6, 3, 7)
"""Of the nibbles that hold columns 0 to 7 of a word."""


def columns(packed: Tensor, device: torch.device) -> Tensor:
    """int32 [R, N / 8] -> uint8 [R, N]."""
    return nibbles(packed, device).unflatten(-1, (-1, 8))[..., list(PLACES)].flatten(-2)


def bind_awq(layer: W4A16Linear, name: str, rows: slice, weights: WeightMap) -> None:
    """Binds a partition's tensors: qweight [K, N / 8], qzeros [groups, N / 8], scales [groups, N]."""
    device, height, groups = layer.words.device, rows.stop - rows.start, layer.scales.shape[1]

    def codes(source: Tensor) -> None:
        layer.put_codes(rows, columns(source, device).T)

    def zeros(source: Tensor) -> None:
        layer.put_zeros(rows, columns(source, device).T)

    def scales(source: Tensor) -> None:
        layer.put_scales(rows, source.to(device).T)

    bind_codes(weights, f"{name}.qweight", (layer.in_features, height // 8), codes)
    bind_codes(weights, f"{name}.qzeros", (groups, height // 8), zeros)
    bind_scales(weights, f"{name}.scales", (groups, height), scales)


class AwqReader(Reader):
    """Raises PluginError for a ``quantization_config`` that it cannot read."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        require(config, "bits" if "bits" in config else "w_bit", (4,), 4)
        require(config, "version", ("gemm", "GEMM"), "gemm")
        require(config, "zero_point", (True,), True)
        self._group_size = typed(config, "group_size" if "group_size" in config else "q_group_size", int, 128)
        kept = config.get("modules_to_not_convert") or []
        if not isinstance(kept, list) or not all(isinstance(entry, str) for entry in kept):
            raise PluginError("quantization_config.modules_to_not_convert is not a list of names")
        self._kept = [*kept, "lm_head"]
        self._unmatched = set(kept)

    def plan(self, spec: LinearSpec) -> Plan | None:
        # AutoAWQ keeps a module whose name contains an entry.
        matches = [[entry for entry in self._kept if entry in name] for name in spec.names]
        self._unmatched.difference_update(entry for found in matches for entry in found)
        if all(matches):
            return None
        if any(matches):
            raise Unsupported("modules_to_not_convert keeps only some of its parts in full precision")
        if any(width % 8 for width in spec.out_features):
            raise Unsupported(f"AWQ packs 8 outputs a word, {spec.out_features} are not multiples of 8")
        return Plan(group_of(self._group_size, spec.in_features), bind_awq)

    def finalize(self) -> None:
        if self._unmatched:
            names = ", ".join(sorted(self._unmatched))
            logger.info("entries of modules_to_not_convert that name no linear layer: %s", names)
