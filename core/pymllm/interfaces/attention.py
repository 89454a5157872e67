"""The contract of an attention backend.

A backend owns the layout of the paged KV cache and everything that touches it. The core decides which
pages a request has; the backend decides what a page is.

Rules:
- ``factory(options, context)`` builds a backend from its options and an :class:`AttentionContext`.
- Pages are numbered from 0. **Page 0 is scrap**: padded rows write there, nothing is ever read from it.
- A slot is ``page * page_size + offset``: the place of one token.
- ``plan`` is called once before the layers of a step run; ``forward`` once per layer and step.
- A token attends to the tokens of its own request at positions up to its own (causal), whatever else
  is in the flat batch.

Shape suffixes: T tokens of the step, R requests of the step, H query heads, K key/value heads, D head
size, P pages in a row of the page table.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from pymllm.config import KVDtype


@dataclass(frozen=True)
class KVGroup:
    """A memory group: full-attention layers of one shape. All such groups share the page numbering.

    layers: how many attention layers. kv_heads, head_dim: their KV shape.
    """

    name: str
    layers: int
    kv_heads: int
    head_dim: int


@dataclass(frozen=True)
class AttentionContext:
    """What a backend is built for. dtype: of activations; page_size: tokens; groups: by name; kv_dtype: how cached
    keys and values are kept."""

    device: torch.device
    dtype: torch.dtype
    page_size: int
    groups: Mapping[str, KVGroup]
    kv_dtype: KVDtype = KVDtype.auto

    @property
    def kv_format(self) -> KVDtype:
        """kv_dtype, but auto for bf16 where activations are bfloat16: it is the same."""
        same = self.kv_dtype is KVDtype.bf16 and self.dtype == torch.bfloat16
        return KVDtype.auto if same else self.kv_dtype

    @property
    def kv_bits(self) -> int | None:
        """Bits of a code where the cache holds codes with a scale and offset for each token and head (int8, int4:
        :mod:`pymllm.layers.kernels.codes`); None where it holds numbers of :attr:`cache_dtype`."""
        return {KVDtype.int8: 8, KVDtype.int4: 4}.get(self.kv_dtype)

    @property
    def cache_dtype(self) -> torch.dtype:
        """Of a cached number where it is kept as one, without a scale. Raises KeyError for int8 and int4."""
        return {KVDtype.auto: self.dtype, KVDtype.bf16: torch.bfloat16, KVDtype.fp8: torch.float8_e4m3fn}[self.kv_dtype]


@dataclass(frozen=True)
class AttentionCapabilities:
    """What a backend can do; a fact of the class, asked before one is built.

    devices: torch device types. dtypes: of activations. page_sizes, head_dims: None is "any".
    graph_capture: ``forward`` of decodes may be captured in a CUDA graph. prefill_capture: that of a few prompts may be
    as well. mixed_batches: prefill chunks and decodes may share a step. kv_dtypes: how the cache can be kept; bf16
    stands for itself with other activations alone.
    """

    devices: frozenset[str]
    dtypes: frozenset[torch.dtype]
    page_sizes: frozenset[int] | None = None
    head_dims: frozenset[int] | None = None
    graph_capture: bool = False
    prefill_capture: bool = False
    mixed_batches: bool = True
    kv_dtypes: frozenset[KVDtype] = frozenset({KVDtype.auto})

    def refuse(self, context: AttentionContext) -> str | None:
        """One line that says why a backend cannot serve this context, or None if it can."""
        if context.device.type not in self.devices:
            return f"runs on {', '.join(sorted(self.devices))}, not on {context.device.type}"
        if context.dtype not in self.dtypes:
            return f"does not support {context.dtype}"
        if context.kv_format not in self.kv_dtypes:
            kinds = ", ".join(kind.value for kind in KVDtype if kind in self.kv_dtypes)
            wanted = f"attention.kv_dtype: {context.kv_dtype.value}"
            return f"does not support {wanted} with activations in {context.dtype} (it can: {kinds})"
        if self.page_sizes is not None and context.page_size not in self.page_sizes:
            sizes = ", ".join(map(str, sorted(self.page_sizes)))
            return f"does not support cache.page_size {context.page_size} (it can: {sizes})"
        for group in context.groups.values():
            if self.head_dims is not None and group.head_dim not in self.head_dims:
                sizes = ", ".join(map(str, sorted(self.head_dims)))
                return f"does not support head size {group.head_dim} (it can: {sizes})"
        return None


class GraphKey(NamedTuple):
    """What a captured step is padded to: R requests and T tokens, as many for decodes, more for prompts."""

    requests: int
    tokens: int

    @property
    def decodes(self) -> bool:
        """Whether each request has one new token."""
        return self.requests == self.tokens


@dataclass
class AttentionBatch:
    """The flat batch of a step as attention sees it. Requests lie one after another.

    query_lens: [R] host; new tokens of each request, >= 1 (1 for a decode).
    context_lens: [R] host; tokens each request has after this step, new ones included.
    query_starts: [R + 1] int32, device; first row of each request in the flat batch, then T.
    context_lens_d: [R] int32, device; context_lens.
    page_table: [R, P] int32, device; page i of a row holds positions i * page_size and on; unused 0.
    slots: [T] int64, device; where each token's K and V are written.
    graph_key: None for a step that runs eagerly. Otherwise the sizes to which the tensors of a step are padded that
        is captured in a CUDA graph: ``plan`` is called outside the graph, before the capture and before every
        replay, with these very tensors and fresh host lists. The graph itself may write the tensors, so ``plan``
        goes by the host lists; what it prepares for ``forward`` stays at its place for that key.
        Decodes: the host lists are padded too, with requests of one token on the scrap page. Prompts: the host lists
        hold the real requests, each with two new tokens or more; those beyond have no tokens and no context
        (query_starts repeats its last), and rows past the last real token may be left as they are.
    """

    query_lens: Sequence[int]
    context_lens: Sequence[int]
    query_starts: Tensor
    context_lens_d: Tensor
    page_table: Tensor
    slots: Tensor
    graph_key: GraphKey | None = None

    @property
    def decode_only(self) -> bool:
        """Whether every request has exactly one new token."""
        return len(self.query_lens) == len(self.slots)


class Norm(Protocol):
    """RMS norm over the last axis: weight [D], eps; callable."""

    weight: Any
    eps: float

    def __call__(self, x: Tensor) -> Tensor: ...


class Rotary(Protocol):
    """Rotary embedding. cos_sin: [positions, rotary_dim] float32, cosines then sines, half each;
    rotary_dim: rotated leading part of a head; callable on q [T, H, D], k [T, K, D], positions [T]."""

    cos_sin: Any
    rotary_dim: int

    def __call__(self, q: Tensor, k: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]: ...


class AttentionLayer(Protocol):
    """What a backend may know of a layer. index: within its group; scale: of q k^T; q_norm, k_norm:
    per-head norms before rotation, or None; rope: rotation, or None (no position encoding)."""

    group: str
    index: int
    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    q_norm: Any
    k_norm: Any
    rope: Any


class AttentionBackend(ABC):
    """Base of every backend. Subclasses implement the abstract methods; ``produce`` and ``forward`` have
    a default that composes the parts and may be overridden by fused kernels."""

    capabilities: AttentionCapabilities

    def __init__(self, context: AttentionContext) -> None:
        self.context = context

    @abstractmethod
    def page_bytes(self, group: KVGroup) -> int:
        """Bytes that one page takes in all layers of a group, K and V and whatever belongs to them."""

    @abstractmethod
    def allocate(self, group: KVGroup, pages: int) -> None:
        """Allocate the cache of a group: ``pages`` pages, page 0 included. Replaces an earlier one.
        Memory need not be initialized. Raises MemoryError or torch.OutOfMemoryError."""

    def warmup(self) -> Iterable[str]:
        """Load, or build, whatever would otherwise be built when it is first used, and keep it where later processes
        find it. Called at every start, after ``allocate`` and a first step, so that serving never builds. A line for
        each that was built, which a generator gives as soon as it is, so that its time is known; the caller takes all
        of them. Must leave no trace in the cache's pages other than page 0."""
        return ()

    @abstractmethod
    def plan(self, batch: AttentionBatch) -> None:
        """Prepare a step: called once, before the layers' ``forward``. The batch must stay unchanged."""

    @abstractmethod
    def write(self, layer: AttentionLayer, k: Tensor, v: Tensor) -> None:
        """Store k and v, [T, K, D] each (k already rotated), in the planned batch's slots."""

    @abstractmethod
    def attend(self, layer: AttentionLayer, q: Tensor, out: Tensor) -> None:
        """Attention of q, [T, H, D] (already rotated), over the cache, into out.

        out: [T, H, D], contiguous, of q's dtype and on its device; what it held may be anything, and is overwritten.
        """

    @abstractmethod
    def copy_pages(self, source: Sequence[int], target: Sequence[int]) -> None:
        """Copy whole pages, in every group and layer. The two lists have one length and do not overlap."""

    @abstractmethod
    def varlen(self, q: Tensor, k: Tensor, v: Tensor, out: Tensor, starts: Sequence[int], scale: float) -> None:
        """Unpaged, non-causal attention inside each sequence of a packed batch (vision towers), written to ``out``.

        q, out: [T, H, D]; k, v: [T, K, D]; starts: [N + 1] host, row bounds of the N sequences.
        """

    def produce(self, layer: AttentionLayer, qkv: Tensor, positions: Tensor) -> Tensor:
        """Norm q and k, rotate them, write k and v -> q [T, H, D]. qkv: [T, (H + 2 K) D], q then k then v.

        Override to fuse: only the backend knows the layout it writes.
        """
        heads, kv_heads, size = layer.heads, layer.kv_heads, layer.head_dim
        q, k, v = qkv.view(-1, heads + 2 * kv_heads, size).split([heads, kv_heads, kv_heads], dim=1)
        if layer.q_norm is not None:
            q = layer.q_norm(q)
        if layer.k_norm is not None:
            k = layer.k_norm(k)
        if layer.rope is not None:
            q, k = layer.rope(q, k, positions)
        self.write(layer, k, v)
        return q

    def forward(self, layer: AttentionLayer, qkv: Tensor, positions: Tensor) -> Tensor:
        """A whole attention layer between its two projections: qkv [T, (H + 2 K) D] -> [T, H D]."""
        q = self.produce(layer, qkv, positions)
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        self.attend(layer, q, out)
        return out.view(-1, layer.heads * layer.head_dim)
