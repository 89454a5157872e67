"""The plan of a step: for each shape of heads in the model, which kernel serves which rows, with what plan.

Plans hang on the number of query heads, which only a layer tells. A shape is planned for when its first layer
runs, and from then on in ``plan``, once a step for all its layers.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pymllm.interfaces import AttentionBatch
from pymllm_attention_flashinfer.kernels import (
    CudaCoreDecode,
    DeviceRequests,
    Heads,
    Memory,
    PackedPrefill,
    PagedKernel,
    Prefill,
)
from pymllm_attention_flashinfer.plugin import FlashInferOptions
from pymllm_attention_flashinfer.policy import (
    CHUNK_PLAN_BYTES,
    DECODE_PLAN_BYTES,
    decodes_on_cuda_cores,
    gathers_prompts,
    graph_plan_bytes,
    partial_bytes,
    prefill_generation,
)
from pymllm_attention_flashinfer.requests import Requests, divide
from pymllm_attention_flashinfer.staging import ALIGNMENT, Pinned, PinnedRing

LIST_BYTES = 64 << 10
"""Host memory for the lists of some thousand requests."""


@dataclass(frozen=True)
class Part:
    """The requests of a step that one kernel serves, planned for one shape of heads."""

    kernel: PagedKernel
    memory: Memory
    plan: Any
    rows: slice
    at: DeviceRequests


@dataclass
class Step:
    """A planned step. parts: by shape of heads."""

    batch: AttentionBatch
    requests: list[tuple[Requests, DeviceRequests]]
    parts: dict[Heads, list[Part]] = field(default_factory=dict)


class Planner:
    """Plans steps, and owns the memory that plans lie in. All steps run on one stream."""

    def __init__(self, options: FlashInferOptions, dtype: torch.dtype, device: torch.device, page_size: int) -> None:
        self.options = options
        self._dtype = dtype
        self._device = device
        self._page_size = page_size
        self._shapes: list[Heads] = []
        self._generation = prefill_generation(options.prefill, device)
        self._kernels: dict[tuple[int, str], PagedKernel] = {}
        self._multiprocessors = torch.cuda.get_device_properties(device).multi_processor_count
        self._floats = self._bytes(0)
        self._memory: dict[object, Memory] = {}
        self._lists: dict[int, Tensor] = {}
        self._small = PinnedRing(8, DECODE_PLAN_BYTES + LIST_BYTES)
        self._large = PinnedRing(2, CHUNK_PLAN_BYTES + DECODE_PLAN_BYTES + LIST_BYTES)

    def step(self, batch: AttentionBatch) -> Step:
        """Plan a step for all shapes known so far."""
        requests = [part for part in divide(batch, self._page_size) if part is not None]
        if batch.graph_key is not None and not batch.decode_only:
            raise ValueError("only a step of decodes alone can have a graph_key")
        page_ids = self._page_ids(batch)
        sizes = [4 * (3 * part.count + 2) for part in requests]
        plan_bytes = sum(_plan_bytes(part, batch) for part in requests) * len(self._shapes)
        with self._ring(batch).take(sum(map(_aligned, sizes)) + plan_bytes) as pinned:
            step = Step(batch, [])
            for part, size in zip(requests, sizes):
                step.requests.append((part, self._send(part, page_ids, batch, pinned.take(size))))
            for heads in self._shapes:
                step.parts[heads] = self._plan(step, heads, pinned)
        return step

    def parts(self, step: Step, heads: Heads) -> list[Part]:
        """What to run for a layer. Raises RuntimeError when a graph is captured before its shape ever ran."""
        found = step.parts.get(heads)
        if found is None:
            if torch.cuda.is_current_stream_capturing():
                raise RuntimeError("attention was captured in a CUDA graph before it was run once; run a step first")
            self._shapes.append(heads)
            size = sum(_plan_bytes(part, step.batch) for part, _ in step.requests)
            with self._ring(step.batch).take(size) as pinned:
                found = step.parts[heads] = self._plan(step, heads, pinned)
        return found

    @contextmanager
    def packed_memory(self, heads: Heads) -> Iterator[tuple[Memory, Tensor]]:
        """Memory for a plan over packed sequences, on the device and, inside the block, page-locked."""
        memory = Memory(self._partials(heads, 0), self._plan_memory("packed", CHUNK_PLAN_BYTES))
        with self._large.take(CHUNK_PLAN_BYTES) as pinned:
            yield memory, pinned.take(CHUNK_PLAN_BYTES)

    def _ring(self, batch: AttentionBatch) -> PinnedRing:
        return self._small if batch.decode_only else self._large

    def _plan(self, step: Step, heads: Heads, pinned: Pinned) -> list[Part]:
        planned = []
        for requests, at in step.requests:
            kernel = self._kernel(heads, self._kind(heads, requests))
            size = _plan_bytes(requests, step.batch)
            memory = self._memory_for(step.batch, requests, heads, kernel, size)
            in_graph = step.batch.graph_key is not None
            plan = kernel.plan(memory, pinned.take(size), requests, heads, self._page_size, in_graph)
            planned.append(Part(kernel, memory, plan, slice(requests.row, requests.row + requests.rows), at))
        return planned

    def _memory_for(
        self, batch: AttentionBatch, requests: Requests, heads: Heads, kernel: PagedKernel, size: int
    ) -> Memory:
        """The memory of a part. That of captured steps stays where it is, since their graphs know the address."""
        key = (heads, requests.decodes, batch.graph_key)
        memory = self._memory.get(key)
        if memory is not None and batch.graph_key is not None:
            return memory
        partials = self._partials(heads, requests.count if kernel.reserves_for_requests else 0)
        if memory is None or memory.floats is not partials:
            ints = self._bytes(size) if memory is None else memory.ints
            memory = self._memory[key] = Memory(partials, ints)
        return memory

    def _kind(self, heads: Heads, requests: Requests) -> str:
        """Which kernel serves a part: a key of ``_kernel``."""
        if requests.decodes:
            on_cuda_cores = decodes_on_cuda_cores(self.options.decode, heads, requests.count)
            return "cuda_cores" if on_cuda_cores else "tensor_cores"
        if self._generation == "fa3" and gathers_prompts(heads, requests):
            return "packed"
        return "paged"

    def _kernel(self, heads: Heads, kind: str) -> PagedKernel:
        kernel = self._kernels.get((heads.size, kind))
        if kernel is None:
            kernel = self._kernels[heads.size, kind] = self._make_kernel(heads, kind)
        return kernel

    def _make_kernel(self, heads: Heads, kind: str) -> PagedKernel:
        where = (self._dtype, heads.size, self._device)
        if kind == "cuda_cores":
            return CudaCoreDecode(*where)
        if kind == "tensor_cores":  # fa3 cannot split the keys of a request, which is what decodes live on
            return Prefill("fa2", *where, causal=False)
        chunks = Prefill(self._generation, *where)
        return PackedPrefill(chunks) if kind == "packed" else chunks

    def _send(self, requests: Requests, page_ids: Tensor, batch: AttentionBatch, pinned: Tensor) -> DeviceRequests:
        """Copy the lists of a part to the device; those of a captured step to where they were before."""
        count, key = requests.count, batch.graph_key
        staged = pinned.view(torch.int32)
        np.concatenate((requests.query_starts, requests.table_starts, requests.last_page_lens), out=staged.numpy())
        lists = None if key is None else self._lists.get(key)
        if lists is None:
            lists = torch.empty(len(staged), dtype=torch.int32, device=self._device)
        if key is not None:
            self._lists[key] = lists
        lists.copy_(staged, non_blocking=True)
        query_starts, table_starts, last_page_lens = lists.split((count + 1, count + 1, count))
        slots = batch.slots if requests.decodes else batch.slots[requests.row : requests.row + requests.rows]
        return DeviceRequests(query_starts, table_starts, last_page_lens, page_ids, slots)

    def _page_ids(self, batch: AttentionBatch) -> Tensor:
        table = batch.page_table
        if not table.is_contiguous():
            if batch.graph_key is not None:
                raise ValueError("the page table of a step with a graph_key must be contiguous")
            table = table.contiguous()
        return table.view(-1)

    def _partials(self, heads: Heads, requests: int) -> Tensor:
        """Shared by all plans, since what is in it lives no longer than a layer. Grows when a step needs more."""
        size = partial_bytes(heads, self._multiprocessors, requests)
        if self._floats.numel() < size:
            self._floats = self._bytes(size)
        return self._floats

    def _plan_memory(self, key: str, size: int) -> Tensor:
        memory = self._memory.get(key)
        if memory is None:
            memory = self._memory[key] = Memory(self._floats, self._bytes(size))
        return memory.ints

    def _bytes(self, size: int) -> Tensor:
        return torch.empty(size, dtype=torch.uint8, device=self._device)


def _plan_bytes(requests: Requests, batch: AttentionBatch) -> int:
    """Memory for the plan of a part, on the device and on the host."""
    if batch.graph_key is not None:
        return _aligned(graph_plan_bytes(requests.count))
    return DECODE_PLAN_BYTES if requests.decodes else CHUNK_PLAN_BYTES


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
