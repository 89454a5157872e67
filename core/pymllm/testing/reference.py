"""An attention backend that is plain enough to be seen to be right, for tests of models."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from pymllm.interfaces import (
    AttentionBackend,
    AttentionBatch,
    AttentionCapabilities,
    AttentionContext,
    AttentionLayer,
    KVGroup,
)


class ReferenceAttention(AttentionBackend):
    """Attention one request and one head at a time, in float32. The cache is a list of token slots.

    Memory is filled with NaN, so that reading what was never written shows.
    """

    capabilities = AttentionCapabilities(
        devices=frozenset({"cpu", "cuda"}), dtypes=frozenset({torch.float32, torch.float16, torch.bfloat16})
    )

    def __init__(self, context: AttentionContext) -> None:
        super().__init__(context)
        self._caches: dict[str, Tensor] = {}
        self._batch: AttentionBatch | None = None

    def page_bytes(self, group: KVGroup) -> int:
        values = 2 * group.layers * self.context.page_size * group.kv_heads * group.head_dim
        return values * self.context.dtype.itemsize

    def allocate(self, group: KVGroup, pages: int) -> None:
        shape = (group.layers, 2, pages * self.context.page_size, group.kv_heads, group.head_dim)
        self._caches[group.name] = torch.full(shape, float("nan"), dtype=self.context.dtype, device=self.context.device)

    def plan(self, batch: AttentionBatch) -> None:
        self._batch = batch

    def write(self, layer: AttentionLayer, k: Tensor, v: Tensor) -> None:
        assert self._batch is not None, "plan was not called"
        keys, values = self._caches[layer.group][layer.index]
        keys[self._batch.slots] = k
        values[self._batch.slots] = v

    def attend(self, layer: AttentionLayer, q: Tensor, out: Tensor) -> None:
        assert self._batch is not None, "plan was not called"
        batch, first = self._batch, 0
        for row, (length, context) in enumerate(zip(batch.query_lens, batch.context_lens)):
            k, v = self._caches[layer.group][layer.index][:, self._slots(batch.page_table[row], context)].float()
            rows = slice(first, first + length)
            out[rows] = _causal(q[rows].float(), k, v, layer.scale)
            first += length

    def _slots(self, pages: Tensor, context: int) -> Tensor:
        positions = torch.arange(context, device=pages.device)
        size = self.context.page_size
        return pages.long()[positions // size] * size + positions % size

    def copy_pages(self, source: Sequence[int], target: Sequence[int]) -> None:
        for cache in self._caches.values():
            pages = cache.unflatten(2, (-1, self.context.page_size))
            pages[:, :, list(target)] = pages[:, :, list(source)]

    def varlen(self, q: Tensor, k: Tensor, v: Tensor, out: Tensor, starts: Sequence[int], scale: float) -> None:
        for start, end in pairwise(starts):
            rows = slice(start, end)
            out[rows] = _attention(q[rows].float(), k[rows].float(), v[rows].float(), scale, None).to(q.dtype)


def _causal(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """q: the last rows of the context that k and v cover."""
    rows, columns = len(q), len(k)
    hidden = torch.ones(rows, columns, dtype=torch.bool, device=q.device).triu(columns - rows + 1)
    return _attention(q, k, v, scale, hidden)


def _attention(q: Tensor, k: Tensor, v: Tensor, scale: float, hidden: Tensor | None) -> Tensor:
    """softmax(scale q k^T) v for [T, H, D] q and [S, K, D] k and v; query head h reads key head h // (H / K)."""
    shared = q.shape[1] // k.shape[1]
    heads = []
    for head in range(q.shape[1]):
        scores = scale * q[:, head] @ k[:, head // shared].T
        if hidden is not None:
            scores = scores.masked_fill(hidden, float("-inf"))
        heads.append(scores.softmax(dim=-1) @ v[:, head // shared])
    return torch.stack(heads, dim=1)
