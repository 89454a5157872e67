"""FlashInfer's kernels as this backend calls them: straight at the compiled functions.

The library's own wrappers cost several times the host time of the compiled functions. Signatures are those of
FlashInfer 0.6.13; that they still hold is what the probe sees before anything is served.

Shape suffixes: T tokens, H query heads, K key/value heads, D head size, S page size, N requests.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pymllm_attention_flashinfer.library import decode_module, prefill_module
from pymllm_attention_flashinfer.requests import Ints, Requests

NHD, WHOLE, CAUSAL, NO_WINDOW = 0, 0, 1, -1
"""The library's codes: a cache with tokens before heads; the two masks; no sliding window."""

CUDA_CORE_GROUPS = frozenset({1, 2, 3, 4, 8})
"""Query heads for each key/value head that the CUDA-core decode kernel is compiled for."""


@dataclass(frozen=True)
class Heads:
    """What a plan depends on beside the batch: H, K and D."""

    query: int
    kv: int
    size: int

    @property
    def group(self) -> int:
        """Query heads for each key/value head."""
        return self.query // self.kv


@dataclass(frozen=True)
class Memory:
    """Where a plan and its kernels work. floats: partial results, shared by all plans of a stream.
    ints: the plan on the device, its own while it is used."""

    floats: Tensor
    ints: Tensor


@dataclass(frozen=True)
class DeviceRequests:
    """On the device: what kernels read of N requests, int32. page_ids: the whole page table, flat. slots: [T] of
    the new tokens, int64."""

    query_starts: Tensor
    table_starts: Tensor
    last_page_lens: Tensor
    page_ids: Tensor
    slots: Tensor


def host(array: Ints) -> Tensor:
    """A contiguous array as a tensor on the same memory."""
    return torch.from_numpy(array)


class PagedKernel(ABC):
    """A kernel that attends over pages. Plans and runs are enqueued on the current stream.

    reserves_for_requests: when captured, it wants memory for partial results of every request, needed or not.
    """

    reserves_for_requests = True

    @abstractmethod
    def plan(
        self, memory: Memory, pinned: Tensor, requests: Requests, heads: Heads, page_size: int, in_graph: bool
    ) -> Any:
        """Divide the work. pinned: page-locked memory as large as ``memory.ints`` has in use, from which the plan
        is copied. in_graph: the launch must stay the same for every plan with as many requests."""

    @abstractmethod
    def run(
        self, memory: Memory, plan: Any, q: Tensor, k: Tensor, v: Tensor, at: DeviceRequests, out: Tensor, scale: float
    ) -> None:
        """q: [T, H, D]; k, v: [pages, S, K, D], strides may be any but 1 within a head; out: [T, H, D]."""


class CudaCoreDecode(PagedKernel):
    """One query token a request; memory-bound work that leaves the tensor cores alone."""

    reserves_for_requests = False

    def __init__(self, dtype: torch.dtype, head_dim: int, device: torch.device) -> None:
        module = decode_module(dtype, head_dim)
        self._plan, self._run = module.plan, module.run
        self._pdl = dependent_launch(device)
        self._nothing = torch.empty(0, dtype=dtype, device=device)

    def plan(
        self, memory: Memory, pinned: Tensor, requests: Requests, heads: Heads, page_size: int, in_graph: bool
    ) -> Any:
        return self._plan(
            memory.floats,
            memory.ints,
            pinned,
            host(requests.page_starts),
            requests.count,
            heads.query,
            heads.kv,
            page_size,
            in_graph,
            NO_WINDOW,
            0.0,  # no soft cap
            heads.size,
            heads.size,
            self._nothing,
            self._nothing,
        )

    def run(
        self, memory: Memory, plan: Any, q: Tensor, k: Tensor, v: Tensor, at: DeviceRequests, out: Tensor, scale: float
    ) -> None:
        self._run(
            memory.floats,
            memory.ints,
            plan,
            q,
            k,
            v,
            at.table_starts,
            at.page_ids,
            at.last_page_lens,
            out,
            None,  # no log-sum-exp
            NHD,
            NO_WINDOW,
            self._pdl,
            None,  # no ALiBi
            0.0,
            scale,
            1.0,  # position encoding that is not used
            1.0,
        )


class Prefill(PagedKernel):
    """Any number of query tokens a request, on tensor cores. generation: "fa2" or "fa3".
    causal: False is right, and cheaper, where every request has one token."""

    def __init__(
        self, generation: str, dtype: torch.dtype, head_dim: int, device: torch.device, causal: bool = True
    ) -> None:
        module = prefill_module(generation, dtype, head_dim)
        self._plan, self._paged, self._ragged = module.plan, module.paged_run, module.ragged_run
        self._fa2 = generation == "fa2"
        self._causal = causal
        self._pdl = dependent_launch(device)

    def plan(
        self, memory: Memory, pinned: Tensor, requests: Requests, heads: Heads, page_size: int, in_graph: bool
    ) -> Any:
        # fa2 divides the work by these bounds, fa3 finds the pages by them and divides by the lengths.
        bounds = requests.page_starts if self._fa2 else requests.table_starts
        lists = (requests.query_starts, bounds, requests.context_lens)
        return self._divide(memory, pinned, lists, heads, page_size, in_graph)

    def run(
        self, memory: Memory, plan: Any, q: Tensor, k: Tensor, v: Tensor, at: DeviceRequests, out: Tensor, scale: float
    ) -> None:
        places = (at.query_starts, at.table_starts, at.page_ids, at.last_page_lens)
        mask = CAUSAL if self._causal else WHOLE
        self._paged(
            memory.floats, memory.ints, plan, q, k, v, *places, out, None, mask, NHD, NO_WINDOW, self._pdl,
            *self._extras(scale),
        )  # fmt: skip

    def plan_packed(self, memory: Memory, pinned: Tensor, starts: Ints, heads: Heads) -> Any:
        """Plan attention inside the sequences of a packed batch. starts: [N + 1]."""
        return self._divide(memory, pinned, (starts, starts, starts[1:] - starts[:-1]), heads, 1, False)

    def run_packed(
        self, memory: Memory, plan: Any, q: Tensor, k: Tensor, v: Tensor, starts: Tensor, out: Tensor, scale: float
    ) -> None:
        """q, out: [T, H, D]; k, v: [T, K, D]; starts: [N + 1] int32, device."""
        mask = CAUSAL if self._causal else WHOLE
        self._ragged(
            memory.floats, memory.ints, plan, q, k, v, starts, starts, out, None, mask, NHD, NO_WINDOW, self._pdl,
            *self._extras(scale),
        )  # fmt: skip

    def _divide(
        self,
        memory: Memory,
        pinned: Tensor,
        lists: tuple[Ints, Ints, Ints],
        heads: Heads,
        page_size: int,
        in_graph: bool,
    ) -> Any:
        """lists: starts of queries, bounds of pages, lengths of keys."""
        sizes = (int(lists[0][-1]), len(lists[2]), heads.query, heads.kv, page_size)
        # fa2 alone: no fixed split size, splitting allowed, no other kernel beside it.
        extra = (-1, False, 0) if self._fa2 else ()
        return self._plan(
            memory.floats, memory.ints, pinned, *map(host, lists), *sizes, in_graph, heads.size, heads.size,
            self._causal, NO_WINDOW, *extra,
        )  # fmt: skip

    def _extras(self, scale: float) -> tuple[object, ...]:
        """Masks, scales and encodings that are not used, with the softmax scale among them."""
        if self._fa2:
            return (*[None] * 8, 0.0, scale, 1.0, 1.0, 0)
        return (*[None] * 4, 0.0, scale, 1.0, 0)


class PackedPrefill(PagedKernel):
    """Prompts without a prefix, from a packed copy of their keys and values."""

    def __init__(self, kernel: Prefill) -> None:
        self._kernel = kernel

    def plan(
        self, memory: Memory, pinned: Tensor, requests: Requests, heads: Heads, page_size: int, in_graph: bool
    ) -> Any:
        return self._kernel.plan_packed(memory, pinned, requests.query_starts, heads)

    def run(
        self, memory: Memory, plan: Any, q: Tensor, k: Tensor, v: Tensor, at: DeviceRequests, out: Tensor, scale: float
    ) -> None:
        keys, values = (_rows(cache, at.slots) for cache in (k, v))
        self._kernel.run_packed(memory, plan, q, keys, values, at.query_starts, out, scale)


def _rows(cache: Tensor, slots: Tensor) -> Tensor:
    """The slots of a layer's keys or values, [T, K, D]."""
    heads, size = cache.shape[2:]
    return cache.view(-1, heads * size).index_select(0, slots).view(-1, heads, size)


def dependent_launch(device: torch.device) -> bool:
    """Whether a kernel may start while the one before it drains (programmatic dependent launch, from Hopper on)."""
    return torch.cuda.get_device_capability(device) >= (9, 0)
