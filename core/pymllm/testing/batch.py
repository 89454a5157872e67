"""Batches from token lists, for tests that run a model without an engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from pymllm.interfaces import AttentionBatch, ForwardBatch, MediaRows


@dataclass(frozen=True)
class Chunk:
    """The part of one request that a step computes.

    tokens: new ones. pages: of the request, enough for its whole context; never page 0.
    start: how many of its tokens were computed before.
    positions: of the new tokens, [axes, len]; None: their indices, on every axis.
    media: features that new tokens stand for; its rows count from the chunk's first token.
    """

    tokens: Sequence[int]
    pages: Sequence[int]
    start: int = 0
    positions: np.ndarray | None = None
    media: MediaRows | None = None

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


def forward_batch(
    chunks: Sequence[Chunk], page_size: int, device: torch.device | str = "cpu", *, axes: int = 1
) -> ForwardBatch:
    """The flat batch of the chunks, with the logits of every row wanted. page_size: tokens. axes: the model's
    ``position_axes``."""
    tokens = [token for chunk in chunks for token in chunk.tokens]
    positions = torch.from_numpy(np.concatenate([_positions(chunk, axes) for chunk in chunks], axis=1))
    return ForwardBatch(
        token_ids=torch.tensor(tokens, dtype=torch.int64, device=device),
        positions=(positions if axes > 1 else positions[0]).to(device),
        logit_rows=torch.arange(len(tokens), dtype=torch.int64, device=device),
        attention=attention_batch(chunks, page_size, device),
        media=_media(chunks),
    )


def _positions(chunk: Chunk, axes: int) -> np.ndarray:
    """[axes, len] int64."""
    if chunk.positions is not None:
        return chunk.positions.astype(np.int64)
    return np.tile(np.arange(chunk.start, chunk.end), (axes, 1))


def _media(chunks: Sequence[Chunk]) -> MediaRows | None:
    rows, features, first = [], [], 0
    for chunk in chunks:
        if chunk.media is not None:
            rows.append(chunk.media.rows + first)
            features.append(chunk.media.features)
        first += len(chunk.tokens)
    return MediaRows(torch.cat(rows), torch.cat(features)) if rows else None
