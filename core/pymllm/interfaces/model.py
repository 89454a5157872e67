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

Shape suffixes: T tokens of the step, S sampled rows, C hidden size, V vocabulary.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from pymllm.interfaces.attention import AttentionBatch, KVGroup


@dataclass
class ForwardBatch:
    """The flat tokens of a step: prefill chunks and decodes of many requests, one after another.

    token_ids: [T] int64. positions: [T] int64. logit_rows: [S] int64, rows whose logits are wanted.
    attention: how the tokens fall into requests, and their pages.
    adapter_slots: [T] int64, adapter of each token, or None when no adapter is loaded.
    """

    token_ids: Tensor
    positions: Tensor
    logit_rows: Tensor
    attention: AttentionBatch
    adapter_slots: Tensor | None = None


class Model(nn.Module, ABC):
    """Base of every model."""

    @classmethod
    @abstractmethod
    def memory_groups(cls, config: Mapping[str, Any]) -> tuple[KVGroup, ...]:
        """The KV memory groups of a checkpoint. Raises CheckpointError for a config it cannot serve,
        naming the key (``use_sliding_window``, say)."""

    @abstractmethod
    def forward(self, batch: ForwardBatch) -> Tensor:
        """Hidden states after the final norm, [T, C]. ``attention.plan`` was called with the batch."""

    @abstractmethod
    def logits(self, hidden: Tensor) -> Tensor:
        """[S, C] -> [S, V], in the activations' dtype."""
