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
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
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

    Models call it through six verbs. Only ``forward`` must be written; the others compose it with its neighbours, and
    a method overrides them where it has kernels that do both at once. A wrapper (an adapter's delta, an all-reduce)
    that overrides ``forward`` alone turns fusion off by inheriting the compositions.

    fusions: what the layer fuses, for information: "norm" (``after_norm``, and the norm in ``gated``), "activation"
    (``gated``, ``gelu``), "residual" (``onto``); none by default.
    spec: what it was made from; the core sets it. None for a head that shares the embedding's weight.
    """

    fusions: frozenset[str] = frozenset()
    spec: LinearSpec | None = None

    @abstractmethod
    def forward(self, x: Tensor) -> Tensor:
        """x: [T, in_features] -> [T, sum(out_features)], in the activations' dtype."""

    def after_norm(self, h: Tensor, norm: Callable[[Tensor], Tensor]) -> Tensor:
        """The layer of norm(h). h: [T, in_features], left as it is -> [T, sum(out_features)]."""
        return self(norm(h))

    def gated(self, h: Tensor, norm: Callable[[Tensor], Tensor] | None = None) -> Tensor:
        """silu(gate) * up (SwiGLU, Shazeer 2020, eq. 6) of a layer whose two partitions of width I are gate and up, of
        norm(h) or of h. h: [T, in_features], left as it is -> [T, I]."""
        gate, up = self(h if norm is None else norm(h)).chunk(2, dim=-1)
        return F.silu(gate).mul_(up)

    def gelu(
        self,
        h: Tensor,
        norm: Callable[[Tensor], Tensor] | None = None,
        *,
        approximate: Literal["none", "tanh"],
    ) -> Tensor:
        """GELU (Hendrycks & Gimpel 2016) of the layer of norm(h), or of h; approximate: "none" for the exact one.
        h: [T, in_features], left as it is -> [T, sum(out_features)]."""
        return F.gelu(self(h) if norm is None else self.after_norm(h, norm), approximate=approximate)

    def onto(self, x: Tensor, h: Tensor) -> Tensor:
        """h plus the layer of x: the end of a block on the residual stream. x: [T, in_features];
        h: [T, sum(out_features)], may be overwritten, so use only what is returned -> the same shape."""
        return h + self(x)

    def onto_gated(self, gate_up: Linear, h: Tensor, norm: Callable[[Tensor], Tensor] | None = None) -> Tensor:
        """h plus the layer of ``gate_up.gated(h, norm)``: a gated block whole, for a method that makes its own form of
        the activation. h: [T, C], may be overwritten -> the same shape."""
        return self.onto(gate_up.gated(h, norm), h)

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

    def warmup(self) -> list[str]:
        """Load, or build, whatever the layers would otherwise build when they are first used, and keep it where later
        processes find it. Called at every start, after ``finalize`` and a first step. Returns what was built, a line
        each."""
        return []
