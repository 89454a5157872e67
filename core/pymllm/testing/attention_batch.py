"""Attention batches from plain lists, for tests and benchmarks of attention backends."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from pymllm.interfaces import AttentionBatch


def make_attention_batch(
    query_lens: Sequence[int],
    context_lens: Sequence[int],
    pages: Sequence[Sequence[int]],
    page_size: int,
    device: torch.device | str = "cpu",
) -> AttentionBatch:
    """The flat batch in which request i computes the last ``query_lens[i]`` of its ``context_lens[i]``
    tokens, which lie in ``pages[i]``, in order; pages past its context are ignored.

    Raises ValueError for lists of different lengths, a request without a new token, or too few pages.
    """
    if not len(query_lens) == len(context_lens) == len(pages):
        raise ValueError("query_lens, context_lens and pages need one entry per request each")
    rows: list[list[int]] = []
    slots: list[int] = []
    starts = [0]
    for new, context, owned in zip(query_lens, context_lens, pages):
        needed = -(-context // page_size)
        if not 1 <= new <= context or len(owned) < needed:
            raise ValueError(f"a request cannot compute {new} of {context} tokens in {len(owned)} pages of {page_size}")
        rows.append(list(owned[:needed]))
        slots += [owned[i // page_size] * page_size + i % page_size for i in range(context - new, context)]
        starts.append(starts[-1] + new)
    width = max((len(row) for row in rows), default=0)
    table = [row + [0] * (width - len(row)) for row in rows]
    return AttentionBatch(
        query_lens=list(query_lens),
        context_lens=list(context_lens),
        query_starts=torch.tensor(starts, dtype=torch.int32, device=device),
        context_lens_d=torch.tensor(context_lens, dtype=torch.int32, device=device),
        page_table=torch.tensor(table, dtype=torch.int32, device=device),
        slots=torch.tensor(slots, dtype=torch.int64, device=device),
    )
