"""FlashInfer's kernels as this backend calls them: straight at the compiled functions.

The library's own wrappers cost several times the host time of the compiled functions. Signatures are those of
FlashInfer 0.6.13; that they still hold is what the probe sees before anything is served. Both calls of a kernel,
planning and running, are made in two steps: what stays the same is bound first, so that little is left to do once a
step and once a layer.

Shape suffixes: T tokens, H query heads, K key/value heads, D head size, S page size, N requests.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pymllm_attention_flashinfer.gather import gather
from pymllm_attention_flashinfer.library import decode_module, prefill_module
from pymllm_attention_flashinfer.requests import Ints, Requests

NHD, WHOLE, CAUSAL, NO_WINDOW = 0, 0, 1, -1
"""The library's codes: a cache with tokens before heads; the two masks; no sliding window."""

CUDA_CORE_GROUPS = frozenset({1, 2, 3, 4, 8})
"""Query heads for each key/value head that the CUDA-core decode kernel is compiled for."""

PlanCall = Callable[[Tensor], Any]
"""Divides the work: page-locked memory, as large as the plan's on the device has in use, from which it is copied there
-> what a run needs of it. Reads the requests' arrays when it is called."""

RunCall = Callable[[Tensor, Tensor, Tensor, Tensor, float], None]
"""Attends for a layer: q [T, H, D], its keys and values, out [T, H, D], the scale of q k^T."""


class Heads(NamedTuple):
    """What a plan depends on beside the batch: H, K and D."""

    query: int
    kv: int
    size: int

    @property
    def group(self) -> int:
        """Query heads for each key/value head."""
        return self.query // self.kv


@dataclass(frozen=True)
class Types:
    """q: of queries and results; kv: of keys and values."""

    q: torch.dtype
    kv: torch.dtype


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
    def planner(self, memory: Memory, requests: Requests, heads: Heads, page_size: int, in_graph: bool) -> PlanCall:
        """in_graph: the launch must stay the same for every plan with as many requests."""

    @abstractmethod
    def runner(self, memory: Memory, plan: Any, at: DeviceRequests) -> RunCall:
        """Keys and values are [pages, S, K, D], with strides that may be any but 1 within a head."""


class CudaCoreDecode(PagedKernel):
    """One query token a request; memory-bound work that leaves the tensor cores alone."""

    reserves_for_requests = False

    def __init__(self, types: Types, head_dim: int, device: torch.device) -> None:
        module = decode_module(types.q, types.kv, head_dim)
        self._plan, self._run = module.plan, module.run
        self._pdl = dependent_launch(device)
        self._nothing = tuple(torch.empty(0, dtype=dtype, device=device) for dtype in (types.q, types.kv))

    def planner(self, memory: Memory, requests: Requests, heads: Heads, page_size: int, in_graph: bool) -> PlanCall:
        plan, floats, ints = self._plan, memory.floats, memory.ints
        no_soft_cap = 0.0
        rest = (
            host(requests.page_starts), requests.number, heads.query, heads.kv, page_size, in_graph, NO_WINDOW,
            no_soft_cap, heads.size, heads.size, *self._nothing,
        )  # fmt: skip
        return lambda pinned: plan(floats, ints, pinned, *rest)

    def runner(self, memory: Memory, plan: Any, at: DeviceRequests) -> RunCall:
        run, work = self._run, (memory.floats, memory.ints, plan)
        places = (at.table_starts, at.page_ids, at.last_page_lens)
        no_logarithms, no_slopes, no_soft_cap, no_rotation = None, None, 0.0, (1.0, 1.0)
        middle = (no_logarithms, NHD, NO_WINDOW, self._pdl, no_slopes, no_soft_cap)

        def call(q: Tensor, k: Tensor, v: Tensor, out: Tensor, scale: float) -> None:
            run(*work, q, k, v, *places, out, *middle, scale, *no_rotation)

        return call


class Prefill(PagedKernel):
    """Any number of query tokens a request, on tensor cores. generation: "fa2" or "fa3".
    causal: False is right, and cheaper, where every request has one token."""

    def __init__(self, generation: str, types: Types, head_dim: int, device: torch.device, causal: bool = True) -> None:
        module = prefill_module(generation, types.q, types.kv, head_dim)
        self._plan, self._paged, self._ragged = module.plan, module.paged_run, module.ragged_run
        self._fa2 = generation == "fa2"
        self._causal = causal
        no_logarithms = None
        mask = CAUSAL if causal else WHOLE
        self._middle = (no_logarithms, mask, NHD, NO_WINDOW, dependent_launch(device))

    def planner(self, memory: Memory, requests: Requests, heads: Heads, page_size: int, in_graph: bool) -> PlanCall:
        # fa2 divides the work by these bounds, fa3 finds the pages by them and divides by the lengths.
        bounds = requests.page_starts if self._fa2 else requests.table_starts
        lists = (requests.query_starts, bounds, requests.context_lens)
        return self._planner(memory, lists, requests.rows, heads, page_size, in_graph)

    def runner(self, memory: Memory, plan: Any, at: DeviceRequests) -> RunCall:
        places = (at.query_starts, at.table_starts, at.page_ids, at.last_page_lens)
        return self._runner(self._paged, memory, plan, places)

    def packed_planner(self, memory: Memory, starts: Ints, heads: Heads) -> PlanCall:
        """Attention inside the sequences of a packed batch. starts: [N + 1]."""
        return self._planner(memory, (starts, starts, starts[1:] - starts[:-1]), int(starts[-1]), heads, 1, False)

    def packed_runner(self, memory: Memory, plan: Any, starts: Tensor) -> RunCall:
        """Keys and values are [T, K, D]. starts: [N + 1] int32, device."""
        return self._runner(self._ragged, memory, plan, (starts, starts))

    def _planner(
        self, memory: Memory, lists: tuple[Ints, Ints, Ints], rows: int, heads: Heads, page_size: int, in_graph: bool
    ) -> PlanCall:
        """lists: starts of queries, bounds of pages, lengths of keys. rows: of all queries, with those of padding."""
        plan, floats, ints = self._plan, memory.floats, memory.ints
        # fa2 alone: no fixed split size, splitting allowed, no other kernel beside it.
        extra = (-1, False, 0) if self._fa2 else ()
        rest = (
            *map(host, lists), rows, len(lists[2]), heads.query, heads.kv, page_size, in_graph,
            heads.size, heads.size, self._causal, NO_WINDOW, *extra,
        )  # fmt: skip
        return lambda pinned: plan(floats, ints, pinned, *rest)

    def _runner(self, run: Any, memory: Memory, plan: Any, places: tuple[Tensor, ...]) -> RunCall:
        work, middle = (memory.floats, memory.ints, plan), self._middle
        # Masks, scales and encodings that are not used, with the softmax scale among them.
        before, after = ((None,) * 8, (1.0, 1.0, 0)) if self._fa2 else ((None,) * 4, (1.0, 0))
        no_soft_cap = 0.0

        def call(q: Tensor, k: Tensor, v: Tensor, out: Tensor, scale: float) -> None:
            run(*work, q, k, v, *places, out, *middle, *before, no_soft_cap, scale, *after)

        return call


class PackedPrefill(PagedKernel):
    """Prompts without a prefix, from a packed copy of their keys and values."""

    def __init__(self, kernel: Prefill) -> None:
        self._kernel = kernel

    def planner(self, memory: Memory, requests: Requests, heads: Heads, page_size: int, in_graph: bool) -> PlanCall:
        return self._kernel.packed_planner(memory, requests.query_starts, heads)

    def runner(self, memory: Memory, plan: Any, at: DeviceRequests) -> RunCall:
        run, slots = self._kernel.packed_runner(memory, plan, at.query_starts), at.slots

        def call(q: Tensor, k: Tensor, v: Tensor, out: Tensor, scale: float) -> None:
            run(q, *gather(k, v, slots), out, scale)

        return call


def dependent_launch(device: torch.device) -> bool:
    """Whether a kernel may start while the one before it drains (programmatic dependent launch, from Hopper on)."""
    return torch.cuda.get_device_capability(device) >= (9, 0)
