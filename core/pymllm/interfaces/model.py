"""The contract of a model.

Rules:
- ``factory(config, context)`` builds a model from a checkpoint's config.json (a plain mapping, so that
  a model needs no class in transformers) and a build context (:class:`pymllm.layers.BuildContext`).
- ``factory.memory_groups(config)`` says, before anything is built, which KV memory the model needs.
- Layers are made through the context (``context.linear``, ``context.attention`` ...), which asks the
  quantization method and the attention backend; a model file holds only the architecture and never
  imports either.
- Every layer binds its checkpoint names while it is built; tensors that are known and not needed are
  declared with ``context.weights.ignore(regex)``.
- A model that takes images or videos says so with ``media_width``, implements ``encode_media`` and
  ``example_media``, and its plugin names a processor (:mod:`pymllm.interfaces.media`).

Shape suffixes: T tokens of the step, S sampled rows, M rows that stand for media, C hidden size, V vocabulary.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor, nn

from pymllm.interfaces.attention import AttentionBatch, KVGroup
from pymllm.interfaces.media import MediaItem, MediaRows


@dataclass
class ForwardBatch:
    """The flat tokens of a step: prefill chunks and decodes of many requests, one after another.

    token_ids: [T] int64. logit_rows: [S] int64, rows whose logits are wanted.
    positions: int64, [T], or [axes, T] for a model with several ``position_axes``.
    attention: how the tokens fall into requests, and their pages.
    adapter_slots: [T] int64, adapter of each token, or None when no adapter is loaded.
    media: rows that stand for images and videos, or None when there are none.
    """

    token_ids: Tensor
    positions: Tensor
    logit_rows: Tensor
    attention: AttentionBatch
    adapter_slots: Tensor | None = None
    media: MediaRows | None = None


class Model(nn.Module, ABC):
    """Base of every model.

    position_axes: numbers that make a token's position; several for M-RoPE, which all count the tokens where a
    prompt holds no media. media_width: components of a feature row of :meth:`encode_media`; 0 if it takes no media.
    """

    position_axes: ClassVar[int] = 1
    media_width: int = 0

    @property
    def media_tower(self) -> nn.Module | None:
        """The part of the model that only ``encode_media`` runs, or None."""
        return None

    @classmethod
    @abstractmethod
    def memory_groups(cls, config: Mapping[str, Any]) -> tuple[KVGroup, ...]:
        """The KV memory groups of a checkpoint. Raises CheckpointError for a config it cannot serve,
        naming the key (``use_sliding_window``, say)."""

    @abstractmethod
    def forward(self, batch: ForwardBatch) -> Tensor:
        """Hidden states after the final norm, [T, C]. ``attention.plan`` was called with the batch.

        Without media it does not wait for the device, and may be captured in a CUDA graph.
        """

    @abstractmethod
    def logits(self, hidden: Tensor) -> Tensor:
        """[S, C] -> [S, V], in the activations' dtype."""

    def encode_media(self, items: Sequence[MediaItem]) -> list[Tensor]:
        """Features of images and videos, [tokens, media_width] each, in the activations' dtype and memory of its own.

        All items are computed together, whatever their sizes; an item's features do not depend on the others, but for
        rounding. Needs neither ``plan`` nor the KV cache.
        """
        raise NotImplementedError(f"{type(self).__name__} takes no images or videos")

    def example_media(self, tokens: int) -> MediaItem:
        """A medium on the model's device of at least ``tokens`` feature rows (and hardly more) whose encoding takes
        the most memory that so many can take: for measuring it, and for warming up."""
        raise NotImplementedError(f"{type(self).__name__} takes no images or videos")
