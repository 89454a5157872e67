"""The ``triton`` attention backend: paged attention in Triton kernels.

Memory that no token of a request was written to may hold anything, NaN included, and never reaches a result.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

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
from pymllm.layers.kernels import produce
from pymllm_attention_triton.cache import PagedCache, token_bytes
from pymllm_attention_triton.configs import (
    BATCH_SIZES,
    CONTEXTS,
    decode_config,
    device_of,
    prefill_config,
    varlen_config,
)
from pymllm_attention_triton.launch import Launch, LayerShape, Step, assign, decode, packed, prefill, write

__all__ = ["TritonAttention"]


class TritonAttention(AttentionBackend):
    """Paged attention in Triton kernels. It has no options.

    **Graphs.** For decodes, and for prompts with a ``graph_key``, :meth:`plan` and :meth:`forward` depend on shapes
    alone: the numbers of requests, tokens and page table columns. Lengths are read on the device. So a graph that
    captured ``forward`` after ``plan(batch)`` may be replayed with other contents of the batch's tensors (at the same
    addresses), without another ``plan``. Calls and replays must run in one order on one stream at a time: they share
    counters.
    """

    capabilities = AttentionCapabilities(
        devices=frozenset({"cuda"}),
        dtypes=frozenset({torch.float32, torch.bfloat16, torch.float16}),
        page_sizes=frozenset(1 << i for i in range(7)),
        head_dims=frozenset(range(8, 257, 8)),
        graph_capture=True,
        prefill_capture=True,
        kv_dtypes=frozenset({KVDtype.auto, KVDtype.fp8, KVDtype.int8, KVDtype.int4}),
    )

    own_prefill = True
    """Whether ``prefill`` is this class's; one that overrides it says no, and nothing is compiled in vain."""

    def __init__(self, options: object, context: AttentionContext) -> None:
        super().__init__(context)
        self._caches: dict[str, PagedCache] = {}
        self._step: Step | None = None
        self._kv_heads = max((group.kv_heads for group in context.groups.values()), default=1)
        # Captured graphs hold the address of the counters they were captured with: all are kept.
        self._counters: list[Tensor] = []
        self._seen: dict[tuple[str, int], tuple[int, int]] = {}
        self._starts: tuple[Sequence[int], Tensor] | None = None

    def page_bytes(self, group: KVGroup) -> int:
        """Bytes of one page in all layers: keys and values, with the scales of codes."""
        return 2 * group.layers * group.kv_heads * self.context.page_size * token_bytes(group.head_dim, self.context)

    def allocate(self, group: KVGroup, pages: int) -> None:
        """Allocate a group's cache. Raises MemoryError or torch.OutOfMemoryError."""
        self._caches.pop(group.name, None)
        self._caches[group.name] = PagedCache(group, pages, self.context)

    def plan(self, batch: AttentionBatch) -> None:
        """Prepare a step. For decodes alone it looks at the batch size only, and does next to nothing."""
        self._step = Step(batch, self._zeros(len(batch.query_lens)))

    def write(self, layer: AttentionLayer, k: Tensor, v: Tensor) -> None:
        """Store k and v, [T, K, D] each, in the planned slots."""
        k, v = _heads_together(k), _heads_together(v)
        write(self._caches[layer.group], layer.index, k, v, self._planned.batch.slots).run()

    def produce(self, layer: AttentionLayer, qkv: Tensor, positions: Tensor) -> Tensor:
        """Norm, rotate and write in one kernel; see the interface. With codes of 4 bits, heads that are rotated in part
        take several: the halves of a byte are those that are rotated together."""
        cache = self._caches[layer.group]
        if cache.bits == 4 and layer.rope is not None and layer.rope.rotary_dim != layer.head_dim:
            return super().produce(layer, qkv, positions)
        # As the kernel takes them, tokens come before heads.
        k_cache, v_cache = (part.transpose(1, 2) for part in cache.layer(layer.index))
        k_scales, v_scales = (None if part is None else part.transpose(1, 2) for part in cache.scales(layer.index))
        slots = self._planned.batch.slots
        return produce(layer, qkv, positions, k_cache, v_cache, slots, k_scales, v_scales)

    def attend(self, layer: AttentionLayer, q: Tensor, out: Tensor) -> None:
        """Causal attention of q, [T, H, D], over the cache, into out, [T, H, D]."""
        step = self._planned
        q = _heads_together(q)
        self._seen.setdefault((layer.group, layer.heads), (layer.head_dim, layer.kv_heads))
        if step.decodes:
            self.decode(layer, q, out)
        if step.prompts:
            self.prefill(layer, q, out)

    def decode(self, layer: AttentionLayer, q: Tensor, out: Tensor) -> None:
        """The part of ``attend`` that serves the requests with one new token."""
        self._decode(layer, q, out, self._planned, self._planned.requests).run()

    def prefill(self, layer: AttentionLayer, q: Tensor, out: Tensor) -> None:
        """The part of ``attend`` that serves the others."""
        self._prefill(layer, q, out, self._planned, self._planned.longest).run()

    def warmup(self) -> Iterator[str]:
        """Compile all that the layers which ran so far may need; one line for each shape of layer."""
        for (group, heads), (head_dim, kv_heads) in self._seen.items():
            self.prepare(LayerShape(group, heads, kv_heads, head_dim))
            yield f"attention kernels compiled: {heads} query and {kv_heads} KV heads of {head_dim}"

    def prepare(self, layer: AttentionLayer) -> None:
        """Compile every kernel that ``attend`` may need for a layer of this shape, so that serving never does.
        Its group's cache must be allocated. Takes seconds, or far less if Triton's cache on disk has them."""
        device = self.context.device
        q = torch.empty((3, layer.heads, layer.head_dim), dtype=self.context.dtype, device=device)
        numbers = torch.zeros(3, dtype=torch.int32, device=device)
        slots = torch.zeros(3, dtype=torch.int64, device=device)
        decodes = Step(AttentionBatch([1, 1, 1], [1, 1, 1], numbers, numbers, numbers[:, None], slots), numbers)
        mixed = Step(AttentionBatch([1, 2], [1, 2], numbers, numbers, numbers[:, None], slots), numbers)
        launches = [self._decode(layer, q, q, decodes, requests) for requests in BATCH_SIZES]
        launches.append(self._decode(layer, q, q, mixed, 1))
        if self.own_prefill:
            launches += [self._prefill(layer, q, q, mixed, longest) for longest in CONTEXTS]
        for launch in launches:
            launch.compile()

    def _decode(self, layer: AttentionLayer, q: Tensor, out: Tensor, step: Step, requests: int) -> Launch:
        group = layer.heads // layer.kv_heads
        # Mixed steps are not that sensitive: one set of parameters for them means one kernel less to compile.
        requests, cache = BATCH_SIZES[-1] if step.prompts else requests, self._caches[layer.group]
        config = decode_config(layer.head_dim, q.element_size(), group, requests, cache.bits)
        # A graph has to cut for itself, even if it is captured for a step that ran before.
        key = (layer.kv_heads, config, q.is_cuda and torch.cuda.is_current_stream_capturing())
        chunks = step.chunks.get(key)
        if chunks is None:
            cut = assign(step, layer.kv_heads, config, q.device)
            cut.run()
            chunks = step.chunks[key] = cut.arguments[0]
        return decode(out, q, cache, layer, step, chunks, config)

    def _prefill(self, layer: AttentionLayer, q: Tensor, out: Tensor, step: Step, longest: int) -> Launch:
        group, device = layer.heads // layer.kv_heads, device_of(q.device)
        config = prefill_config(device, layer.head_dim, q.element_size(), group, longest)
        return prefill(out, q, self._caches[layer.group], layer, step, config)

    def copy_pages(self, source: Sequence[int], target: Sequence[int]) -> None:
        """Copy whole pages in every group and layer."""
        if source:
            for cache in self._caches.values():
                cache.copy_pages(source, target)

    def varlen(self, q: Tensor, k: Tensor, v: Tensor, out: Tensor, starts: Sequence[int], scale: float) -> None:
        """Non-causal attention inside each sequence. The layers of a tower share one copy of ``starts``."""
        if self._starts is None or self._starts[0] != list(starts):
            on_device = torch.tensor(starts, dtype=torch.int32).to(q.device, non_blocking=True)
            self._starts = (list(starts), on_device)
        if starts[-1] > starts[0]:
            config = varlen_config(device_of(q.device), q.shape[2], q.element_size())
            q, k, v = _heads_together(q), _heads_together(k), _heads_together(v)
            packed(out, q, k, v, *self._starts, scale, config).run()

    @property
    def _planned(self) -> Step:
        assert self._step is not None, "plan() comes first"
        return self._step

    def _zeros(self, requests: int) -> Tensor:
        """Counters that are 0 between launches, one per request and KV head."""
        needed = requests * self._kv_heads
        if not self._counters or self._counters[-1].numel() < needed:
            size = max(4096, 2 * needed)
            self._counters.append(torch.zeros(size, dtype=torch.int32, device=self.context.device))
        return self._counters[-1]


def _heads_together(x: Tensor) -> Tensor:
    """x [T, H, D] with each token's heads contiguous; tokens may lie apart, as in a slice of qkv."""
    return x if x.stride(2) == 1 and x.stride(1) == x.shape[2] else x.contiguous()
