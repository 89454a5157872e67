"""The plan of a step: for each shape of heads in the model, which kernel serves which rows, with what plan.

Plans hang on the number of query heads, which only a layer tells. A shape is planned for when its first layer
runs, and from then on in ``plan``, once a step for all its layers.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from pymllm.interfaces import AttentionBatch, AttentionContext, GraphKey
from pymllm_attention_flashinfer.captured import CapturedStep
from pymllm_attention_flashinfer.kernels import DeviceRequests, Heads, Memory, RunCall, Types
from pymllm_attention_flashinfer.plugin import FlashInferOptions
from pymllm_attention_flashinfer.policy import CHUNK_PLAN_BYTES, DECODE_PLAN_BYTES, graph_plan_bytes, partial_bytes
from pymllm_attention_flashinfer.requests import Requests, divide
from pymllm_attention_flashinfer.select import Kernels
from pymllm_attention_flashinfer.staging import Pinned, PinnedRing, aligned

LIST_BYTES = 64 << 10
"""Host memory for the lists of some thousand requests."""


class Part(NamedTuple):
    """The requests of a step that one kernel serves, planned for one shape of heads.

    decodes: whether each has one new token. rows: their new tokens in the batch, None for all.
    """

    run: RunCall
    decodes: bool
    rows: slice | None


@dataclass
class Step:
    """A planned step. parts: by shape of heads. requests: of a step that is not captured."""

    batch: AttentionBatch
    parts: dict[Heads, list[Part]] = field(default_factory=dict)
    requests: list[tuple[Requests, DeviceRequests]] = field(default_factory=list)


class Planner:
    """Plans steps, and owns the memory that plans lie in. All steps run on one stream."""

    def __init__(self, options: FlashInferOptions, context: AttentionContext) -> None:
        """Raises ConfigError for an option that the device or the cache's dtype does not allow."""
        self.device = context.device
        # A cache of codes is not read by any kernel of the library; packed sequences are no matter of the cache.
        keys = context.dtype if context.kv_bits is not None else context.cache_dtype
        self.kernels = Kernels(options, Types(context.dtype, keys), context.device)
        self.shapes: list[Heads] = []
        self._page_size = context.page_size
        self._multiprocessors = torch.cuda.get_device_properties(context.device).multi_processor_count
        self._floats = self._bytes(0)
        self._memory: dict[object, Memory] = {}
        self._captured: dict[GraphKey, CapturedStep] = {}
        self._small = PinnedRing(8, DECODE_PLAN_BYTES + LIST_BYTES)
        self._large = PinnedRing(2, CHUNK_PLAN_BYTES + DECODE_PLAN_BYTES + LIST_BYTES)

    def step(self, batch: AttentionBatch) -> Step:
        """Plan a step for all shapes known so far."""
        if batch.graph_key is None:
            return self._eager(batch)
        captured = self._captured.get(batch.graph_key)
        if captured is None or captured.table is not batch.page_table:
            captured = self._captured[batch.graph_key] = self._begin(batch)
        for heads in self.shapes:
            if heads not in captured.shapes:
                self._add(captured, heads)
        return self._replayed(captured, batch)

    def parts(self, step: Step, heads: Heads) -> list[Part]:
        """What to run for a layer. Raises RuntimeError when a graph is captured before its shape ever ran."""
        found = step.parts.get(heads)
        if found is None:
            if torch.cuda.is_current_stream_capturing():
                raise RuntimeError("attention was captured in a CUDA graph before it was run once; run a step first")
            self.shapes.append(heads)
            found = step.parts[heads] = self._first(step, heads)
        return found

    @contextmanager
    def packed_memory(self, heads: Heads) -> Iterator[tuple[Memory, Tensor]]:
        """Memory for a plan over packed sequences, on the device and, inside the block, page-locked."""
        memory = self._memory_for("packed", self._partials(heads, 0), CHUNK_PLAN_BYTES)
        with self._large.take(CHUNK_PLAN_BYTES) as pinned:
            yield memory, pinned.take(CHUNK_PLAN_BYTES)

    # Captured steps

    def _begin(self, batch: AttentionBatch) -> CapturedStep:
        if not batch.page_table.is_contiguous():
            raise ValueError("the page table of a step with a graph_key must be contiguous")
        return CapturedStep(batch, batch.page_table.view(-1), self._page_size)

    def _add(self, captured: CapturedStep, heads: Heads) -> None:
        requests = captured.requests
        kernel = self.kernels.serving(heads, requests, captured=True)
        splits = not requests.decodes and self.kernels.splits_prompts
        number = requests.number if kernel.reserves_for_requests else 0
        floats = self._partials(heads, number, requests.rows if splits else 0)
        captured.add(heads, kernel, Memory(floats, self._bytes(aligned(graph_plan_bytes(requests.rows)))))

    def _replayed(self, captured: CapturedStep, batch: AttentionBatch) -> Step:
        step = Step(batch)
        for heads, plan in captured.plan(batch).items():
            shape = captured.shapes[heads]
            step.parts[heads] = [
                Part(shape.kernel.runner(shape.memory, plan, captured.at), captured.requests.decodes, None)
            ]
        return step

    # Steps that are launched kernel by kernel

    def _eager(self, batch: AttentionBatch) -> Step:
        decodes, chunks = divide(batch, self._page_size)
        requests = [part for part in (decodes if self.kernels.decodes else None, chunks) if part is not None]
        list_bytes = aligned(4 * sum(3 * part.number + 2 for part in requests))
        plan_bytes = sum(map(_plan_bytes, requests)) * len(self.shapes)
        with self._ring(chunks is None).take(list_bytes + plan_bytes) as pinned:
            step = Step(batch, requests=self._send(requests, batch, pinned))
            for heads in self.shapes:
                step.parts[heads] = self._plan(step, heads, pinned)
        return step

    def _first(self, step: Step, heads: Heads) -> list[Part]:
        """Plan a step for a shape that it turns out to have."""
        if step.batch.graph_key is not None:
            captured = self._captured[step.batch.graph_key]
            self._add(captured, heads)
            return self._replayed(captured, step.batch).parts[heads]
        size = sum(_plan_bytes(part) for part, _ in step.requests)
        with self._ring(step.batch.decode_only).take(size) as pinned:
            return self._plan(step, heads, pinned)

    def _ring(self, decodes_alone: bool) -> PinnedRing:
        return self._small if decodes_alone else self._large

    def _plan(self, step: Step, heads: Heads, pinned: Pinned) -> list[Part]:
        parts = []
        for requests, at in step.requests:
            kernel = self.kernels.serving(heads, requests)
            partials = self._partials(heads, requests.number if kernel.reserves_for_requests else 0)
            size = _plan_bytes(requests)
            memory = self._memory_for((heads, requests.decodes), partials, size)
            plan = kernel.planner(memory, requests, heads, self._page_size, False)(pinned.take(size))
            whole = requests.rows == len(step.batch.slots)
            rows = None if whole else slice(requests.row, requests.row + requests.rows)
            parts.append(Part(kernel.runner(memory, plan, at), requests.decodes, rows))
        return parts

    def _send(
        self, requests: list[Requests], batch: AttentionBatch, pinned: Pinned
    ) -> list[tuple[Requests, DeviceRequests]]:
        """Copy the lists of all parts to the device, in one piece."""
        arrays = [array for part in requests for array in (part.query_starts, part.table_starts, part.last_page_lens)]
        sizes = [len(array) for array in arrays]
        count = sum(sizes)
        staged, array = pinned.take_ints(count)
        np.concatenate(arrays, out=array)
        lists = torch.empty(count, dtype=torch.int32, device=self.device)
        lists.copy_(staged, non_blocking=True)
        pieces = torch.split_with_sizes(lists, sizes)
        page_ids = batch.page_table.reshape(-1)
        sent = []
        for part, starts, tables, last in zip(requests, pieces[::3], pieces[1::3], pieces[2::3]):
            slots = batch.slots[part.row : part.row + part.rows]
            sent.append((part, DeviceRequests(starts, tables, last, page_ids, slots)))
        return sent

    # Memory

    def _memory_for(self, key: object, floats: Tensor, size: int) -> Memory:
        """The memory of plans of a kind; its part for partial results is replaced by a larger one."""
        memory = self._memory.get(key)
        if memory is None or memory.floats is not floats:
            memory = self._memory[key] = Memory(floats, self._bytes(size) if memory is None else memory.ints)
        return memory

    def _partials(self, heads: Heads, requests: int, captured_tokens: int = 0) -> Tensor:
        """Shared by all plans, since what is in it lives no longer than a layer. Grows when a step needs more."""
        size = partial_bytes(heads, self._multiprocessors, requests, captured_tokens)
        if self._floats.numel() < size:
            self._floats = self._bytes(size)
        return self._floats

    def _bytes(self, size: int) -> Tensor:
        return torch.empty(size, dtype=torch.uint8, device=self.device)


def _plan_bytes(requests: Requests) -> int:
    """Memory for the plan of a part that is not captured, on the device and on the host."""
    return DECODE_PLAN_BYTES if requests.decodes else CHUNK_PLAN_BYTES
