"""Unpaged, non-causal attention inside each sequence of a packed batch (vision towers)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from pymllm_attention_torch.dense import Dense, block_size, fold, unfold


def packed_attention(
    dense: Dense, q: Tensor, k: Tensor, v: Tensor, out: Tensor, starts: Sequence[int], scale: float
) -> None:
    """q, out: [T, H, D]; k, v: [T, K, D]; starts: [N + 1] bounds of the N sequences.

    Sequences of one length are computed together, whatever lies between them.
    """
    by_length: dict[int, list[int]] = {}
    for start, end in pairwise(starts):
        if end > start:
            by_length.setdefault(end - start, []).append(start)
    for length, firsts in by_length.items():
        steps = torch.arange(length, device=q.device)
        rows = (torch.tensor(firsts, device=q.device)[:, None] + steps).view(-1)
        sequences = (x.index_select(0, rows).unflatten(0, (-1, length)) for x in (q, k, v))
        out.index_copy_(0, rows, _equal_lengths(dense, sequences, scale).flatten(0, 1))


def _equal_lengths(dense: Dense, qkv: Iterable[Tensor], scale: float) -> Tensor:
    """q: [N, L, H, D]; k, v: [N, L, K, D] -> [N, L, H, D]."""
    q, k, v = qkv
    count, length, heads, _ = q.shape
    kv_heads = k.shape[2]
    k, v = (x.transpose(1, 2).flatten(0, 1) for x in (k, v))
    out = torch.empty_like(q)
    step = block_size(q.device, count * heads, length)
    for start in range(0, length, step):
        block = q[:, start : start + step]
        result = dense(fold(block, kv_heads).flatten(0, 1), k, v, None, scale)
        out[:, start : start + step] = unfold(result.unflatten(0, (count, kv_heads)), block.shape[1])
    return out
