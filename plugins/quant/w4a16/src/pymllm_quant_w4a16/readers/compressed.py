"""compressed-tensors ``pack-quantized``: codes along the inputs, eight a word, scales beside them.

The format: compressed-tensors 0.19, ``compressors/pack_quantized``. A code is the number plus 8; zero points are packed
alike, along the outputs.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pymllm.checkpoint.compressed_tensors import CompressedTensors, QuantArgs
from pymllm.errors import CheckpointError
from pymllm.interfaces import LinearSpec, Unsupported, WeightMap, always
from pymllm_quant_w4a16.linear import W4A16Linear
from pymllm_quant_w4a16.readers.base import Plan, Reader, bind_codes, bind_scales, group_of, nibbles

logger = logging.getLogger(__name__)

FORMAT = "pack-quantized"


@dataclass(frozen=True)
class BindCompressed:
    """Binds a partition's tensors. symmetric: there are no zero points."""

    symmetric: bool

    def __call__(self, layer: W4A16Linear, name: str, rows: slice, weights: WeightMap) -> None:
        device, height, terms = layer.words.device, rows.stop - rows.start, layer.in_features
        groups = layer.scales.shape[1]

        def codes(source: Tensor) -> None:
            layer.put_codes(rows, nibbles(source, device)[:, :terms])

        def zeros(source: Tensor) -> None:
            layer.put_zeros(rows, nibbles(source.T, device).T[:height])

        def shape(source: Tensor) -> None:
            if source.tolist() != [height, terms]:
                raise CheckpointError(f"{name}.weight_shape is {source.tolist()}, the model has {[height, terms]}")

        bind_codes(weights, f"{name}.weight_packed", (height, -(-terms // 8)), codes)
        bind_scales(weights, f"{name}.weight_scale", (height, groups), lambda source: layer.put_scales(rows, source))
        weights.bind_to(f"{name}.weight_shape", (2,), shape, draw=always(torch.tensor([height, terms]), (2,)))
        if self.symmetric:
            weights.ignore(re.escape(f"{name}.weight_zero_point"))
        else:
            bind_codes(weights, f"{name}.weight_zero_point", (-(-height // 8), groups), zeros)


class CompressedReader(Reader):
    """Raises CheckpointError for a ``quantization_config`` that cannot be read."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._config = CompressedTensors.read(config)

    def plan(self, spec: LinearSpec) -> Plan | None:
        scheme = self._config.scheme(spec.names)
        if scheme is None:
            return None
        if scheme.format != FORMAT:
            raise Unsupported(f"w4a16 reads the format {FORMAT}, not {scheme.format}")
        if scheme.inputs is not None:
            raise Unsupported(f"w4a16 does not quantize activations, the checkpoint asks for {scheme.inputs}")
        return Plan(_group(scheme.weights, spec.in_features), BindCompressed(scheme.weights.symmetric))

    def finalize(self) -> None:
        unmatched = self._config.unmatched()
        if unmatched:
            logger.info("entries of the checkpoint's ignore list that name no linear layer: %s", ", ".join(unmatched))


def _group(weights: QuantArgs, in_features: int) -> int:
    if (weights.bits, weights.kind) != (4, "int") or weights.dynamic:
        raise Unsupported(f"w4a16 reads static 4-bit integers, not {weights}")
    if weights.strategy not in ("group", "channel"):
        raise Unsupported(f"w4a16 reads scales per group or channel, not per {weights.strategy}")
    # Of the other orders nothing is left in the checkpoint: its columns and groups are in their places.
    if weights.actorder not in (None, "static", "weight"):
        raise Unsupported(f"actorder {weights.actorder} is not supported, only static and weight")
    return group_of(weights.group_size if weights.strategy == "group" else None, in_features)
