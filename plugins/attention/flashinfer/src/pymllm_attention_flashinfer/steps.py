"""The plan of a step: for each shape of heads in the model, which kernel serves which rows, with what plan.

Plans hang on the number of query heads, which only a layer tells. A shape is planned for when its first layer
runs, and from then on in ``plan``, once a step for all its layers.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from pymllm.interfaces import AttentionBatch
from pymllm_attention_flashinfer.kernels import CudaCoreDecode, DeviceRequests, Heads, Memory, PagedKernel, Prefill
from pymllm_attention_flashinfer.plugin import FlashInferOptions
from pymllm_attention_flashinfer.policy import (
    CHUNK_PLAN_BYTES,
    DECODE_PLAN_BYTES,
    decodes_on_cuda_cores,
    graph_plan_bytes,
    partial_bytes,
    prefill_generation,
)
from pymllm_attention_flashinfer.requests import Requests, divide
from pymllm_attention_flashinfer.staging import PinnedRing


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
    """Plans steps, and owns the memory that plans lie in."""

    def __init__(self, options: FlashInferOptions, dtype: torch.dtype, device: torch.device, page_size: int) -> None:
        self.options = options
        self._dtype = dtype
        self._device = device
        self._page_size = page_size
        self._shapes: list[Heads] = []
        self._kernels: dict[tuple[Heads, bool], PagedKernel] = {}
        self._multiprocessors = torch.cuda.get_device_properties(device).multi_processor_count
        self._floats = self._bytes(0)
        self._captured: dict[tuple[Heads, int], Tensor] = {}
        self._ints: dict[object, Tensor] = {}
        self._arrays: dict[object, Tensor] = {}
        self._small = PinnedRing(8, DECODE_PLAN_BYTES)
        self._large = PinnedRing(2, CHUNK_PLAN_BYTES)

    def step(self, batch: AttentionBatch) -> Step:
        """Plan a step for all shapes known so far."""
        parts = [part for part in divide(batch, self._page_size) if part is not None]
        if batch.graph_key is not None and (len(parts) != 1 or not batch.decode_only):
            raise ValueError("only a step of decodes alone can have a graph_key")
        page_ids = self._page_ids(batch)
        step = Step(batch, [(part, self._send(part, page_ids, batch.graph_key)) for part in parts])
        for heads in self._shapes:
            step.parts[heads] = self._plan(step, heads)
        return step

    def parts(self, step: Step, heads: Heads) -> list[Part]:
        """What to run for a layer. Raises RuntimeError when a graph is captured before its shape ever ran."""
        found = step.parts.get(heads)
        if found is None:
            if torch.cuda.is_current_stream_capturing():
                raise RuntimeError("attention was captured in a CUDA graph before it was run once; run a step first")
            self._shapes.append(heads)
            found = step.parts[heads] = self._plan(step, heads)
        return found

    @contextmanager
    def packed_memory(self, heads: Heads) -> Iterator[Memory]:
        """Memory for a plan over packed sequences, which is made inside the block."""
        floats = self._partials(heads, 0)
        with self._large.take(CHUNK_PLAN_BYTES) as pinned:
            yield Memory(floats, self._plan_memory("packed", CHUNK_PLAN_BYTES), pinned)

    def _plan(self, step: Step, heads: Heads) -> list[Part]:
        key = step.batch.graph_key
        planned = []
        for requests, at in step.requests:
            decodes = requests.rows == requests.count
            kernel = self._kernel(heads, decodes)
            if key is not None:
                size = graph_plan_bytes(requests.count)
            else:
                size = DECODE_PLAN_BYTES if decodes else CHUNK_PLAN_BYTES
            floats = self._partials(heads, requests.count if kernel.reserves_for_requests else 0)
            if key is not None:  # a captured kernel knows the address
                floats = self._captured.setdefault((heads, key), floats)
            ints = self._plan_memory((heads, decodes, key), size)
            with (self._small if decodes else self._large).take(size) as pinned:
                memory = Memory(floats, ints, pinned)
                plan = kernel.plan(memory, requests, heads, self._page_size, key is not None)
            planned.append(Part(kernel, memory, plan, slice(requests.row, requests.row + requests.rows), at))
        return planned

    def _kernel(self, heads: Heads, decodes: bool) -> PagedKernel:
        kernel = self._kernels.get((heads, decodes))
        if kernel is None:
            if decodes and decodes_on_cuda_cores(self.options.decode, heads):
                kernel = CudaCoreDecode(self._dtype, heads.size, self._device)
            else:
                # fa3 cannot split the keys of a request, which is what decodes live on.
                generation = "fa2" if decodes else prefill_generation(self.options.prefill, self._device)
                kernel = Prefill(generation, self._dtype, heads.size, self._device, causal=not decodes)
            self._kernels[heads, decodes] = kernel
        return kernel

    def _send(self, requests: Requests, page_ids: Tensor, key: int | None) -> DeviceRequests:
        """Copy the lists of a part to the device; those of a captured step to where they were before."""
        count = requests.count
        size = 3 * count + 2
        if key is None:
            arrays = torch.empty(size, dtype=torch.int32, device=self._device)
        else:
            known = self._arrays.get(key)
            arrays = torch.empty(size, dtype=torch.int32, device=self._device) if known is None else known
            self._arrays[key] = arrays
        with self._small.take(4 * size) as pinned:
            staged = pinned[: 4 * size].view(torch.int32)
            view = staged.numpy()
            view[: count + 1] = requests.query_starts
            view[count + 1 : 2 * count + 2] = requests.table_starts
            view[2 * count + 2 :] = requests.last_page_lens
            arrays.copy_(staged, non_blocking=True)
        return DeviceRequests(arrays[: count + 1], arrays[count + 1 : 2 * count + 2], arrays[2 * count + 2 :], page_ids)

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

    def _plan_memory(self, key: object, size: int) -> Tensor:
        memory = self._ints.get(key)
        if memory is None:
            memory = self._ints[key] = self._bytes(size)
        return memory

    def _bytes(self, size: int) -> Tensor:
        return torch.empty(size, dtype=torch.uint8, device=self._device)
