"""Token embeddings, and the head that shares their weight."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pymllm.interfaces.quant import Linear


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
    """A language-model head whose weight is the embedding's (``tie_word_embeddings``)."""

    def __init__(self, embedding: Embedding) -> None:
        super().__init__()
        self.embedding = embedding

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.embedding.weight)
