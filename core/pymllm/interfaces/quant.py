"""The contract of a quantization method.

Rules:
- ``factory(options, context)`` builds a method from its options and a :class:`QuantContext`; it raises
  PluginError when the checkpoint's ``quantization_config`` is of a kind it cannot read.
- ``linear(spec, weights)`` returns the layer: a module with its parameters, bound to checkpoint names.
- A layer the method cannot serve is refused with :class:`Unsupported` and a reason; the core then uses
  full precision for it and logs the name, where the checkpoint holds full-precision weights for it.
  It never serves garbage.
- Full precision is a method like any other (``pymllm.layers.linear.FullPrecision``).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from pymllm.interfaces.weights import WeightMap


class Unsupported(Exception):
    """A layer that a method cannot serve; the message is the reason, e.g. "256 rows are not a multiple of 64"."""


@dataclass(frozen=True)
class QuantContext:
    """What a method is built for. checkpoint: config.json's ``quantization_config``, or None when the
    checkpoint is full precision (the method then quantizes while loading, or refuses)."""

    device: torch.device
    dtype: torch.dtype
    checkpoint: Mapping[str, Any] | None


@dataclass(frozen=True)
class LinearSpec:
    """A linear layer y = x W^T + b.

    names: checkpoint module names, one per output partition of a fused projection, e.g.
        ("model.layers.0.self_attn.q_proj", "...k_proj", "...v_proj"); tensors are "<name>.weight" etc.
    out_features: width of each partition; in_features: width of x.
    parallel, rank, world: how the layer is cut over GPUs ("column": outputs, "row": inputs).
    """

    names: tuple[str, ...]
    in_features: int
    out_features: tuple[int, ...]
    bias: bool
    dtype: torch.dtype
    device: torch.device
    parallel: Literal["column", "row", "replicated"] = "replicated"
    rank: int = 0
    world: int = 1


class Linear(nn.Module, ABC):
    """A linear layer as a quantization method made it.

    fusions: names of neighbours it can absorb ("norm", "activation", "residual"); none by default.
    """

    fusions: frozenset[str] = frozenset()

    @abstractmethod
    def forward(self, x: Tensor) -> Tensor:
        """x: [T, in_features] -> [T, sum(out_features)], in the activations' dtype."""

    def finalize(self) -> None:
        """Called once after the weights were loaded: repack, drop what is no longer needed."""


class QuantMethod(ABC):
    """Makes the linear layers of a model."""

    @abstractmethod
    def linear(self, spec: LinearSpec, weights: WeightMap) -> Linear:
        """Make a layer and bind its checkpoint names. Raises Unsupported with a reason."""

    def finalize(self) -> None:
        """Called once after all layers were built and loaded. Raises PluginError, for example when an
        entry of an ignore list matched no module."""
