"""Batches from token lists, for tests that run a model without an engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from pymllm.interfaces import AttentionBatch, ForwardBatch


@dataclass(frozen=True)
class Chunk:
    """The part of one request that a step computes.

    tokens: new ones. pages: of the request, enough for its whole context; never page 0.
    start: how many of its tokens were computed before.
    """

    tokens: Sequence[int]
    pages: Sequence[int]
    start: int = 0

    @property
    def end(self) -> int:
        """Tokens of the request after the step."""
        return self.start + len(self.tokens)

    def slots(self, page_size: int) -> list[int]:
        """Where each new token's K and V go."""
        return [self.pages[i // page_size] * page_size + i % page_size for i in range(self.start, self.end)]


def attention_batch(chunks: Sequence[Chunk], page_size: int, device: torch.device | str = "cpu") -> AttentionBatch:
    """How the chunks lie one after another. page_size: tokens."""
    starts = [0]
    for chunk in chunks:
        starts.append(starts[-1] + len(chunk.tokens))
    width = max(-(-chunk.end // page_size) for chunk in chunks)
    table = [[*chunk.pages[: -(-chunk.end // page_size)]] for chunk in chunks]
    return AttentionBatch(
        query_lens=[len(chunk.tokens) for chunk in chunks],
        context_lens=[chunk.end for chunk in chunks],
        query_starts=torch.tensor(starts, dtype=torch.int32, device=device),
        context_lens_d=torch.tensor([chunk.end for chunk in chunks], dtype=torch.int32, device=device),
        page_table=torch.tensor([row + [0] * (width - len(row)) for row in table], dtype=torch.int32, device=device),
        slots=torch.tensor(
            [slot for chunk in chunks for slot in chunk.slots(page_size)], dtype=torch.int64, device=device
        ),
    )


def forward_batch(chunks: Sequence[Chunk], page_size: int, device: torch.device | str = "cpu") -> ForwardBatch:
    """The flat batch of the chunks, with the logits of every row wanted. page_size: tokens."""
    tokens = [token for chunk in chunks for token in chunk.tokens]
    positions = [position for chunk in chunks for position in range(chunk.start, chunk.end)]
    return ForwardBatch(
        token_ids=torch.tensor(tokens, dtype=torch.int64, device=device),
        positions=torch.tensor(positions, dtype=torch.int64, device=device),
        logit_rows=torch.arange(len(tokens), dtype=torch.int64, device=device),
        attention=attention_batch(chunks, page_size, device),
    )
