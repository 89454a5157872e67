"""What a step prepares once for all its layers: which requests are computed together, and their indices.

Decodes are computed in groups of similar context length, padded to the longest. Each prefill chunk is
computed by itself. All control flow comes from the host lists of the batch, so nothing here or in the
layers waits for a GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from pymllm.interfaces import AttentionBatch
from pymllm_attention_torch.paged import gather_index, write_index

GROUP_TOKENS = 8192
"""Most keys of a group: bounds the memory of a layer's gathered copy."""

FREE_PADDING = 512
"""Padded keys that cost less than computing another group would."""

KEY_MULTIPLE = 32
"""Groups have a multiple of that many keys: oneDNN compiles a kernel for every new shape it meets."""


@dataclass(frozen=True)
class DecodeGroup:
    """Decodes computed as one padded batch of B requests.

    rows: [B] their rows of the flat batch; None: all rows in order. index: [2, B, K, P] for the cache.
    stale: rows of the gathered [2 * B * K * L, D] that may hold anything, NaN too, and must be cleared.
    bias: [B * K, 1, W] float32 for the last W keys, -inf where there is no token; both None where all are.
    """

    rows: Tensor | None
    index: Tensor
    stale: Tensor | None
    bias: Tensor | None


@dataclass(frozen=True)
class PrefillChunk:
    """One request's chunk. start, tokens: rows of the flat batch; context: keys, the chunk's included;
    index: [2, 1, K, P] for the cache."""

    start: int
    tokens: int
    context: int
    index: Tensor


@dataclass(frozen=True)
class HeadPlan:
    """The plan for layers with K key/value heads. writes: [T * 2 * K] rows for the cache."""

    writes: Tensor
    decodes: list[DecodeGroup]
    chunks: list[PrefillChunk]


class StepPlan:
    """The plan of a step. Raises nothing; the batch must stay as it is."""

    def __init__(self, batch: AttentionBatch, page_size: int) -> None:
        self.batch = batch
        self.page_size = page_size
        self._by_heads: dict[int, HeadPlan] = {}

    def heads(self, kv_heads: int) -> HeadPlan:
        """The plan for layers with that many key/value heads, made when first asked for."""
        plan = self._by_heads.get(kv_heads)
        if plan is None:
            writes = write_index(self.batch.slots, kv_heads, self.page_size)
            decodes = [self._decode_group(members, kv_heads) for members in self._groups]
            plan = self._by_heads[kv_heads] = HeadPlan(writes, decodes, self._chunks(kv_heads))
        return plan

    @cached_property
    def _starts(self) -> list[int]:
        return list(accumulate(self.batch.query_lens, initial=0))

    @cached_property
    def _groups(self) -> list[list[int]]:
        decodes = [i for i, length in enumerate(self.batch.query_lens) if length == 1]
        return group_by_length(decodes, self.batch.context_lens)

    def _pages(self, tokens: int) -> int:
        return -(-tokens // self.page_size)

    def _chunks(self, kv_heads: int) -> list[PrefillChunk]:
        chunks = []
        for i, tokens in enumerate(self.batch.query_lens):
            if tokens > 1:
                context = self.batch.context_lens[i]
                pages = self.batch.page_table[i : i + 1, : self._pages(context)]
                chunks.append(PrefillChunk(self._starts[i], tokens, context, gather_index(pages, kv_heads)))
        return chunks

    def _decode_group(self, members: list[int], kv_heads: int) -> DecodeGroup:
        table = self.batch.page_table
        whole = members == list(range(len(self.batch.slots)))
        rows = None if whole else _copy_to([self._starts[i] for i in members], table.device)
        if not whole:
            table = table.index_select(0, _copy_to(members, table.device))
        lengths = [self.batch.context_lens[i] for i in members]
        used = [self._pages(length) for length in lengths]
        count = self._pages(-(-max(lengths) // KEY_MULTIPLE) * KEY_MULTIPLE)
        # Behind its last page a request repeats its first, which is its own and (if full) holds numbers.
        columns = [[i if i < pages else 0 for i in range(count)] for pages in used]
        index = gather_index(table.gather(1, _copy_to(columns, table.device)), kv_heads)
        keys = count * self.page_size
        ends = [pages * self.page_size if pages > 1 else keys for pages in used]
        position = torch.arange(keys)
        empty = position >= torch.tensor(lengths)[:, None]
        if not empty.any():
            return DecodeGroup(rows, index, None, None)
        unwritten = empty & (position < torch.tensor(ends)[:, None])
        stale = unwritten[None, :, None].expand(2, -1, kv_heads, -1).reshape(-1).nonzero().view(-1)
        masked = empty[:, min(lengths) :].repeat_interleave(kv_heads, 0)[:, None]
        bias = torch.zeros(masked.shape).masked_fill_(masked, float("-inf"))
        return DecodeGroup(rows, index, _copy_to(stale, table.device), _copy_to(bias, table.device))


def _copy_to(values: Any, device: torch.device) -> Tensor:
    """A list or tensor of the host, on the device, without waiting for it."""
    return torch.as_tensor(values).to(device, non_blocking=True)


def group_by_length(members: Sequence[int], lengths: Sequence[int]) -> list[list[int]]:
    """Cut requests into groups of similar length, so that padding each to its longest wastes little.

    members: indices into lengths. Each group is in ascending order of index.
    """
    groups: list[list[int]] = []
    longest = padding = 0
    for i in sorted(members, key=lambda i: -lengths[i]):
        padding += longest - lengths[i]
        tokens = longest * (len(groups[-1]) + 1) if groups else 0
        if not groups or tokens > GROUP_TOKENS or padding > max(FREE_PADDING, tokens // 8):
            groups.append([])
            longest, padding = lengths[i], 0
        groups[-1].append(i)
    return [sorted(group) for group in groups]
