"""GPTQ, version 1, without activation order: codes along the inputs, eight a word, zero points minus one.

The format: AutoGPTQ 0.7, ``auto_gptq/nn_modules/qlinear``; GPTQModel's ``checkpoint_format: gptq``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pymllm.errors import CheckpointError, PluginError
from pymllm.interfaces import LinearSpec, Unsupported, WeightMap, always
from pymllm_quant_w4a16.linear import W4A16Linear
from pymllm_quant_w4a16.readers.base import (
    Ignored,
    Plan,
    Reader,
    bind_codes,
    bind_scales,
    group_of,
    nibbles,
    require,
    typed,
)


@dataclass(frozen=True)
class BindGptq:
    """Binds a partition's tensors: qweight [K / 8, N], qzeros [groups, N / 8], scales [groups, N], g_idx [K]."""

    group: int

    def __call__(self, layer: W4A16Linear, name: str, rows: slice, weights: WeightMap) -> None:
        device, height, terms = layer.words.device, rows.stop - rows.start, layer.in_features
        groups = terms // self.group

        in_order = torch.arange(terms) // self.group

        def order(source: Tensor) -> None:
            if not torch.equal(source.cpu().long(), in_order):
                raise CheckpointError(f"{name}.g_idx is out of order (activation order), which w4a16 cannot read")

        def codes(source: Tensor) -> None:
            layer.put_codes(rows, nibbles(source.T, device))

        def zeros(source: Tensor) -> None:
            layer.put_zeros(rows, nibbles(source, device).T + 1)

        def scales(source: Tensor) -> None:
            layer.put_scales(rows, source.to(device).T)

        bind_codes(weights, f"{name}.qweight", (terms // 8, height), codes)
        bind_codes(weights, f"{name}.qzeros", (groups, height // 8), zeros)
        bind_scales(weights, f"{name}.scales", (groups, height), scales)
        weights.bind_to(f"{name}.g_idx", (terms,), order, draw=always(in_order, (terms,)))


class GptqReader(Reader):
    """ignore: the user's, of layers in full precision. Raises PluginError for a ``quantization_config`` that it cannot
    read."""

    def __init__(self, config: Mapping[str, Any], ignore: Sequence[str]) -> None:
        require(config, "bits", (4,), None)
        require(config, "desc_act", (False,), False)
        require(config, "checkpoint_format", ("gptq",), "gptq")
        if config.get("dynamic"):
            raise PluginError("quantization_config.dynamic (settings by module) is not supported by w4a16")
        self._group_size = typed(config, "group_size", int, 128)
        self._head = typed(config, "lm_head", bool, False)
        inside = typed(config, "modules_in_block_to_quantize", list, [])
        self._inside = [name for entry in inside for name in ([entry] if isinstance(entry, str) else entry)]
        self._ignored = Ignored([entry for entry in ignore if not (self._head and entry == "lm_head")])

    def plan(self, spec: LinearSpec) -> Plan | None:
        if self._ignored.takes(spec.names):
            return None
        quantized = [self._quantized(name) for name in spec.names]
        if not any(quantized):
            return None
        if not all(quantized):
            raise Unsupported("modules_in_block_to_quantize names only some of its parts")
        if spec.in_features % 8 or any(width % 8 for width in spec.out_features):
            raise Unsupported(
                f"GPTQ packs 8 inputs and 8 outputs a word, {spec.in_features} -> {spec.out_features} does not fit"
            )
        group = group_of(self._group_size, spec.in_features)
        return Plan(group, BindGptq(group))

    def _quantized(self, name: str) -> bool:
        if name.split(".")[-1] == "lm_head":
            return bool(self._head)
        return not self._inside or any(name.endswith(f".{entry}") for entry in self._inside)

    def finalize(self) -> None:
        self._ignored.finalize()
