"""Token embeddings, and the head that shares their weight."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pymllm.interfaces.quant import Linear
from pymllm.layers.fused import FusedProducts, fuse
from pymllm.layers.packed import PackedWeight, pack, stand_in


class Embedding(nn.Module):
    """weight: [vocabulary, size]."""

    weight: Tensor

    def __init__(self, vocabulary: int, size: int, *, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocabulary, size, dtype=dtype, device=device), requires_grad=False)

    def forward(self, token_ids: Tensor) -> Tensor:
        """[T] int64, each below the vocabulary's size -> [T, C]."""
        return F.embedding(token_ids, self.weight)


class TiedHead(Linear):
    """A language-model head whose weight is the embedding's (``tie_word_embeddings``).

    On a CPU that can, ``finalize`` makes a packed copy (:mod:`pymllm.layers.packed`): the head is the largest product
    of a decode step. The buffer ``copy`` stands for its memory.
    """

    def __init__(self, embedding: Embedding) -> None:
        super().__init__()
        self.embedding = embedding
        self._packed: PackedWeight | None = None
        self._fused: FusedProducts | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self._packed is not None:
            return self._packed(x)
        if self._fused is not None:
            return self._fused.plain(x, self.embedding.weight, None)
        return F.linear(x, self.embedding.weight)

    def finalize(self) -> None:
        if self._packed is None:
            self._packed = pack(self.embedding.weight)
            if self._packed is not None:
                self.register_buffer("copy", stand_in(self.embedding.weight), persistent=False)
        if self._fused is None:
            self._fused = fuse(self.embedding.weight)
