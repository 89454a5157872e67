"""The dense pre-norm decoder that most language models share; a model brings its attention block.

Shape suffixes as in :mod:`pymllm.interfaces.model`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from pymllm.errors import CheckpointError
from pymllm.interfaces.attention import KVGroup
from pymllm.interfaces.media import MediaRows
from pymllm.interfaces.model import ForwardBatch, Model
from pymllm.layers.config import optional, required
from pymllm.layers.context import BuildContext
from pymllm.layers.media import MediaPoint
from pymllm.layers.mlp import GatedMLP
from pymllm.layers.rope import Rope


@dataclass(frozen=True)
class DecoderConfig:
    """The sizes of a dense decoder, read from a Hugging Face config."""

    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    eps: float
    tied: bool
    mlp_bias: bool = False

    @classmethod
    def read(cls, config: Mapping[str, Any], *, head_dim: int | None = None, mlp_bias: bool = False) -> DecoderConfig:
        """Read config.json. head_dim: of configs that do not say (None: hidden size / heads); mlp_bias: whether
        the feed-forward projections have biases.

        Raises CheckpointError for a missing size, and for what this decoder does not compute, naming the key.
        """
        _refuse_unsupported(config)
        hidden, heads = required(config, "hidden_size", int), required(config, "num_attention_heads", int)
        sizes = cls(
            hidden=hidden,
            intermediate=required(config, "intermediate_size", int),
            layers=required(config, "num_hidden_layers", int),
            heads=heads,
            kv_heads=optional(config, "num_key_value_heads", heads),
            head_dim=optional(config, "head_dim", head_dim or hidden // max(heads, 1)),
            vocabulary=required(config, "vocab_size", int),
            eps=optional(config, "rms_norm_eps", 1e-6),
            tied=optional(config, "tie_word_embeddings", False),
            mlp_bias=mlp_bias,
        )
        for name, value in vars(sizes).items():
            if type(value) is int and value < 1:
                raise CheckpointError(f"the checkpoint's config gives {name} = {value}: it must be at least 1")
        if heads % sizes.kv_heads:
            raise CheckpointError(
                f"num_attention_heads {heads} is not a multiple of num_key_value_heads {sizes.kv_heads}"
            )
        return sizes


def _refuse_unsupported(config: Mapping[str, Any]) -> None:
    activation = optional(config, "hidden_act", "silu")
    if activation != "silu":
        raise CheckpointError(f"hidden_act '{activation}' is not supported (supported: silu)")
    kinds = config.get("layer_types")
    if kinds is None and optional(config, "use_sliding_window", False) and config.get("sliding_window", 1) is not None:
        full = optional(config, "max_window_layers", 28)
        if full < required(config, "num_hidden_layers", int):
            raise CheckpointError("use_sliding_window is not supported: this model attends to the whole context only")
    for kind in kinds or ():
        if kind != "full_attention":
            raise CheckpointError(f"layer_types holds '{kind}', which is not supported (supported: full_attention)")


AttentionBlock = Callable[[BuildContext, Rope], nn.Module]
"""Makes a layer's attention block, projections included: (h [T, C], its norm, positions [T]) -> h plus attention of
norm(h), [T, C]. It may overwrite h."""


class DecoderLayer(nn.Module):
    """The residual stream passes an attention block and an MLP, each of which norms, computes and adds."""

    def __init__(self, config: DecoderConfig, context: BuildContext, rope: Rope, attention: AttentionBlock) -> None:
        super().__init__()
        self.input_norm = context.norm("input_layernorm", config.hidden, config.eps)
        self.attention = attention(context.at("self_attn"), rope)
        self.mlp_norm = context.norm("post_attention_layernorm", config.hidden, config.eps)
        self.mlp = GatedMLP(context.at("mlp"), config.hidden, config.intermediate, bias=config.mlp_bias)

    def forward(self, h: Tensor, positions: Tensor) -> Tensor:
        """h: the residual stream, [T, C], may be overwritten; positions: [T] -> the stream one layer on."""
        return self.mlp(self.attention(h, self.input_norm, positions), self.mlp_norm)


class Decoder(nn.Module):
    """Embedding, layers and final norm.

    context: at the decoder's place in the checkpoint ("model"). media_levels: levels of features of images and videos
    that it takes.
    """

    def __init__(
        self,
        config: DecoderConfig,
        context: BuildContext,
        rope: Rope,
        attention: AttentionBlock,
        *,
        media_levels: int = 0,
    ) -> None:
        super().__init__()
        self.embedding = context.embedding("embed_tokens", config.vocabulary, config.hidden)
        self.rope = rope
        self.layers = nn.ModuleList(
            DecoderLayer(config, context.at(f"layers.{index}"), rope, attention) for index in range(config.layers)
        )
        self.norm = context.norm("norm", config.hidden, config.eps)
        self.media_points = nn.ModuleList(MediaPoint(level) for level in range(media_levels))
        context.weights.ignore(r".*\.rotary_emb\.inv_freq")

    def forward(self, token_ids: Tensor, positions: Tensor, media: MediaRows | None = None) -> Tensor:
        """token_ids: [T]; positions: [T], or [axes, T] as the rotary embedding takes them -> hidden states after the
        final norm, [T, C].

        media: its features, [M, (1 + levels) C], stand for the embeddings of its rows; the further levels are added to
        these rows after the first layers, one each (DeepStack: Meng et al. 2024).
        """
        h = self._enter(0, self.embedding(token_ids), media)
        with self.rope.at(positions) as places:
            for index, layer in enumerate(self.layers, start=1):
                h = self._enter(index, layer(h, places), media)
        return self.norm(h)

    def _enter(self, level: int, h: Tensor, media: MediaRows | None) -> Tensor:
        if level < len(self.media_points):
            h = self.media_points[level](h, media)
        return h


class DenseModel(Model):
    """A language model that is a dense decoder and a head, under the names that Llama gave them.

    name: the decoder's place in the checkpoint. rope: the config's, unless given. media_levels: see :class:`Decoder`.
    """

    def __init__(
        self,
        sizes: DecoderConfig,
        config: Mapping[str, Any],
        context: BuildContext,
        attention: AttentionBlock,
        *,
        name: str = "model",
        rope: Rope | None = None,
        media_levels: int = 0,
    ) -> None:
        super().__init__()
        rope = rope or context.rope(config, sizes.head_dim)
        self.decoder = Decoder(sizes, context.at(name), rope, attention, media_levels=media_levels)
        self.media_width = media_levels * sizes.hidden
        tied = self.decoder.embedding if sizes.tied else None
        self.head = context.lm_head("lm_head", sizes.hidden, sizes.vocabulary, tied=tied)

    @classmethod
    def sizes(cls, config: Mapping[str, Any]) -> DecoderConfig:
        """What the config says of this model. Raises CheckpointError for one that it cannot serve."""
        return DecoderConfig.read(config)

    @classmethod
    def memory_groups(cls, config: Mapping[str, Any]) -> tuple[KVGroup, ...]:
        sizes = cls.sizes(config)
        return (KVGroup("kv", sizes.layers, sizes.kv_heads, sizes.head_dim),)

    def forward(self, batch: ForwardBatch) -> Tensor:
        return self.decoder(batch.token_ids, batch.positions, batch.media)

    def logits(self, hidden: Tensor) -> Tensor:
        return self.head(hidden)
