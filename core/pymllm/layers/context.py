"""What a model is built with."""

from __future__ import annotations

import copy
import logging
import re
from collections.abc import Mapping
from typing import Any, Literal

import torch

from pymllm.interfaces.attention import AttentionBackend
from pymllm.interfaces.quant import Linear, LinearSpec, QuantMethod, Unsupported
from pymllm.interfaces.weights import WeightMap
from pymllm.layers.attention import Attention
from pymllm.layers.embedding import Embedding, TiedHead
from pymllm.layers.linear import FullPrecision
from pymllm.layers.multi_rope import MultiRope, interleaved_axes
from pymllm.layers.norm import LayerNorm, RMSNorm
from pymllm.layers.rope import Rope
from pymllm.layers.rope_scaling import RopeSpec, rope_spec
from pymllm.layers.varlen import VarlenAttention

logger = logging.getLogger(__name__)


class BuildContext:
    """Makes a model's layers on the right device, asks the quantization method and the attention backend for
    their parts, and binds checkpoint names.

    dtype, device: of parameters and activations. quant: makes the linear layers. attention: the backend
    (kept as ``backend``). weights: collects the checkpoint names. options: the model plugin's options.
    max_context: longest context that will be served, tokens. rank of world: which part of the layers.
    prefix: where in the checkpoint this context is; names given to its methods are relative to it.
    """

    def __init__(
        self,
        *,
        dtype: torch.dtype,
        device: torch.device,
        quant: QuantMethod,
        attention: AttentionBackend,
        weights: WeightMap,
        max_context: int,
        options: Any = None,
        rank: int = 0,
        world: int = 1,
        prefix: str = "",
    ) -> None:
        self.dtype = dtype
        self.device = device
        self.quant = quant
        self.backend = attention
        self.weights = weights
        self.max_context = max_context
        self.options = options
        self.rank = rank
        self.world = world
        self.prefix = prefix
        self._layers_of_group: dict[str, int] = {}
        self._ropes: dict[RopeSpec, Rope] = {}

    def at(self, name: str) -> BuildContext:
        """A context one level deeper: ``context.at("layers.0")``. What is counted and shared stays shared."""
        child = copy.copy(self)
        child.prefix = self.name(name)
        return child

    def name(self, name: str) -> str:
        """The full checkpoint name of a name relative to the prefix."""
        return f"{self.prefix}.{name}" if self.prefix else name

    def linear(
        self,
        names: str | tuple[str, ...],
        in_features: int,
        out_features: int | tuple[int, ...],
        *,
        bias: bool = False,
        parallel: Literal["column", "row", "replicated"] = "replicated",
    ) -> Linear:
        """A linear layer of the quantization method; several names make one fused projection with one width
        each. A layer that the method refuses becomes full precision, and a warning names it and the reason; so does
        the error of a checkpoint that has it quantized."""
        spec = LinearSpec(
            names=tuple(self.name(name) for name in ((names,) if isinstance(names, str) else names)),
            in_features=in_features,
            out_features=(out_features,) if isinstance(out_features, int) else out_features,
            bias=bias,
            dtype=self.dtype,
            device=self.device,
            parallel=parallel,
            rank=self.rank,
            world=self.world,
        )
        if len(spec.names) != len(spec.out_features):
            raise ValueError(f"{spec.names}: one width for each name is needed, not {spec.out_features}")
        try:
            layer = self.quant.linear(spec, self.weights)
        except Unsupported as reason:
            logger.warning("%s: served in full precision, %s", " + ".join(spec.names), reason)
            layer = FullPrecision().linear(spec, self.weights)
            self.weights.refuse(spec.names, str(reason))
        layer.spec = spec
        return layer

    def norm(self, name: str, size: int, eps: float) -> RMSNorm:
        """An RMS norm over ``size`` components."""
        norm = RMSNorm(size, eps, dtype=self.dtype, device=self.device)
        self.weights.bind(self.name(f"{name}.weight"), norm.weight)
        return norm

    def layer_norm(self, name: str, size: int, eps: float) -> LayerNorm:
        """A layer norm over ``size`` components, with a bias."""
        norm = LayerNorm(size, eps, dtype=self.dtype, device=self.device)
        self.weights.bind(self.name(f"{name}.weight"), norm.weight)
        self.weights.bind(self.name(f"{name}.bias"), norm.bias)
        return norm

    def embedding(self, name: str, vocabulary: int, size: int) -> Embedding:
        """A token embedding."""
        embedding = Embedding(vocabulary, size, dtype=self.dtype, device=self.device)
        self.weights.bind(self.name(f"{name}.weight"), embedding.weight)
        return embedding

    def lm_head(self, name: str, size: int, vocabulary: int, *, tied: Embedding | None = None) -> Linear:
        """The projection to the vocabulary, [S, C] -> [S, V]. With ``tied`` it is that embedding's weight, and a
        copy of it in the checkpoint is not read."""
        if tied is None:
            return self.linear(name, size, vocabulary, parallel="column")
        self.weights.ignore(re.escape(self.name(f"{name}.weight")))
        return TiedHead(tied)

    def rope(self, config: Mapping[str, Any], head_dim: int) -> Rope:
        """The rotary embedding of a config; equal ones are one object. Raises CheckpointError for an unknown kind."""
        spec = rope_spec(config, head_dim, self.max_context)
        if spec not in self._ropes:
            self._ropes[spec] = Rope(spec, self.max_context, device=self.device)
        return self._ropes[spec]

    def multi_rope(self, config: Mapping[str, Any], head_dim: int) -> MultiRope:
        """The rotary embedding of a config with interleaved sections for three axes. Raises CheckpointError."""
        spec = rope_spec(config, head_dim, self.max_context)
        return MultiRope(spec, interleaved_axes(config, len(spec.inverse_frequencies)), device=self.device)

    def varlen_attention(self, *, heads: int, head_dim: int) -> VarlenAttention:
        """Attention without a KV cache, inside each of several packed sequences."""
        return VarlenAttention(self.backend, heads=heads, head_dim=head_dim)

    def attention(
        self,
        *,
        heads: int,
        kv_heads: int,
        head_dim: int,
        group: str = "kv",
        rope: Rope | None = None,
        q_norm: RMSNorm | None = None,
        k_norm: RMSNorm | None = None,
        scale: float | None = None,
    ) -> Attention:
        """The next attention layer of a memory group. scale: of q k^T, 1 / sqrt(head_dim) when None."""
        index = self._layers_of_group.get(group, 0)
        self._layers_of_group[group] = index + 1
        return Attention(
            self.backend,
            group=group,
            index=index,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            scale=head_dim**-0.5 if scale is None else scale,
            rope=rope,
            q_norm=q_norm,
            k_norm=k_norm,
        )
