"""The ``torch`` attention backend: paged attention in plain PyTorch, on CPU and CUDA.

It is the reference that other backends are compared with, and the backend of machines without a GPU.
Memory that no token of a request was written to may hold anything, NaN included, and never reaches a result.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pymllm.interfaces import (
    AttentionBackend,
    AttentionBatch,
    AttentionCapabilities,
    AttentionContext,
    AttentionLayer,
    KVDtype,
    KVGroup,
)
from pymllm_attention_torch.dense import block_size, dense_attention, fold, unfold
from pymllm_attention_torch.packed import packed_attention
from pymllm_attention_torch.paged import PagedCache, token_bytes
from pymllm_attention_torch.plan import DecodeGroup, PrefillChunk, StepPlan
from pymllm_attention_torch.probe import probe
from pymllm_attention_torch.quantized import QuantizedCache
from pymllm_attention_torch.scratch import Scratch

__all__ = ["TorchAttention", "probe"]


class TorchAttention(AttentionBackend):
    """Paged attention in plain PyTorch. It has no options."""

    capabilities = AttentionCapabilities(
        devices=frozenset({"cpu", "cuda"}),
        dtypes=frozenset({torch.float32, torch.bfloat16, torch.float16}),
        kv_dtypes=frozenset(KVDtype),
    )

    def __init__(self, options: object, context: AttentionContext) -> None:
        super().__init__(context)
        self._dense = dense_attention(context.device, context.dtype)
        # What codes stand for is float32: rounding it to fewer bits would cost more than they do.
        self._paged = self._dense if context.kv_bits is None else dense_attention(context.device, torch.float32)
        self._scratch = Scratch(context.device)
        self._caches: dict[str, PagedCache] = {}
        self._plan: StepPlan | None = None
        self._biases: dict[int, Tensor] = {}

    def page_bytes(self, group: KVGroup) -> int:
        """Bytes of one page in all layers: keys and values, with the scales of codes."""
        return 2 * group.layers * group.kv_heads * self.context.page_size * token_bytes(group.head_dim, self.context)

    def allocate(self, group: KVGroup, pages: int) -> None:
        """Allocate a group's cache. Raises MemoryError or torch.OutOfMemoryError."""
        self._caches.pop(group.name, None)
        kind = PagedCache if self.context.kv_bits is None else QuantizedCache
        self._caches[group.name] = kind(group, pages, self.context, self._scratch)

    def plan(self, batch: AttentionBatch) -> None:
        """Group the requests of a step."""
        self._plan = StepPlan(batch, self.context.page_size)

    def write(self, layer: AttentionLayer, k: Tensor, v: Tensor) -> None:
        """Store k and v, [T, K, D] each, in the planned slots."""
        assert self._plan is not None, "plan() comes before write()"
        self._caches[layer.group].write(layer.index, self._plan.heads(layer.kv_heads).writes, k, v)

    def attend(self, layer: AttentionLayer, q: Tensor, out: Tensor) -> None:
        """Causal attention of q, [T, H, D], over the cache, into out, [T, H, D]."""
        assert self._plan is not None, "plan() comes before attend()"
        plan = self._plan.heads(layer.kv_heads)
        for group in plan.decodes:
            if group.rows is None:
                out.copy_(self._decode(layer, group, q))
            else:
                out.index_copy_(0, group.rows, self._decode(layer, group, q.index_select(0, group.rows)))
        for chunk in plan.chunks:
            rows = slice(chunk.start, chunk.start + chunk.tokens)
            self._prefill(layer, chunk, q[rows], out[rows])

    def copy_pages(self, source: Sequence[int], target: Sequence[int]) -> None:
        """Copy whole pages in every group and layer."""
        if source:
            for cache in self._caches.values():
                cache.copy_pages(source, target)

    def varlen(self, q: Tensor, k: Tensor, v: Tensor, out: Tensor, starts: Sequence[int], scale: float) -> None:
        """Non-causal attention inside each sequence; sequences of one length are computed together."""
        packed_attention(self._dense, q, k, v, out, starts, scale)

    def _decode(self, layer: AttentionLayer, group: DecodeGroup, q: Tensor) -> Tensor:
        kv = self._caches[layer.group].gather(layer.index, group.index)
        size = q.shape[-1]
        if group.stale is not None:
            kv.view(-1, size).index_fill_(0, group.stale, 0)
        k, v = kv.flatten(1, 2).unbind()
        # The query heads of one KV head lie side by side: they become the rows of one product.
        out = self._paged(q.reshape(k.shape[0], -1, size), k, v, group.bias, layer.scale)
        return out.view(q.shape)

    def _prefill(self, layer: AttentionLayer, chunk: PrefillChunk, q: Tensor, out: Tensor) -> None:
        k, v = self._caches[layer.group].gather(layer.index, chunk.index)[:, 0].unbind()
        step = block_size(q.device, layer.heads, chunk.context)
        for start in range(0, chunk.tokens, step):
            block = q[start : start + step]
            # Keys after the block's last token are cut off, those inside it are masked.
            keys = chunk.context - chunk.tokens + start + len(block)
            bias = self._causal(len(block), layer.heads // layer.kv_heads)
            folded = self._paged(fold(block, layer.kv_heads), k[:, :keys], v[:, :keys], bias, layer.scale)
            out[start : start + step] = unfold(folded, len(block))

    def _causal(self, tokens: int, group: int) -> Tensor:
        """[1, tokens * group, tokens]: each token, ``group`` rows of it, sees itself and what comes before."""
        bias = self._biases.get(group)
        if bias is None or bias.shape[2] < tokens:
            square = torch.full((tokens, tokens), float("-inf"), device=self.context.device).triu_(1)
            bias = self._biases[group] = square.repeat_interleave(group, 0)[None]
        return bias[:, : tokens * group, :tokens]
