"""Decode steps as replays of CUDA graphs, one for each padded batch size."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pymllm.engine.batch import sample_row
from pymllm.engine.cuda.alias import alias
from pymllm.engine.cuda.prepare import prepare_decode
from pymllm.engine.cuda.staging import StagedRows
from pymllm.engine.cuda.tables import PageTables
from pymllm.engine.fast_parameters import fast_seeds
from pymllm.engine.kernels.sample import FastSampler
from pymllm.engine.plan import StepItem
from pymllm.engine.sampling_batch import SampleRow
from pymllm.interfaces.attention import AttentionBackend, AttentionBatch
from pymllm.interfaces.model import ForwardBatch, Model

TOKEN, SLOT, POSITION, SLOPE, SEED, ANSWER_INDEX = range(6)
"""Rows of the staged inputs. SLOPE holds float32; the last two are what the row's random number comes from."""


class DecodeGraphs:
    """Static buffers for up to ``most`` rows, and a graph for each size.

    tokens, valid: [most] int64, what the replayed step sampled (0 and 0 for a row whose logits are broken).
    logits: [most, V], for rows that need more than the fast sampler. last_tokens: [slots + 1] int64, by
    request slot, shared with the rest of the runner.
    """

    def __init__(
        self,
        model: Model,
        attention: AttentionBackend,
        tables: PageTables,
        last_tokens: Tensor,
        sizes: list[int],
        sampler: FastSampler,
    ) -> None:
        self._model = model
        self._attention = attention
        self._tables = tables
        self._last_tokens = last_tokens
        self.sizes = sizes
        device, most = attention.context.device, sizes[-1]
        self._inputs = StagedRows(6, most, device)
        self._token_ids = torch.zeros(most, dtype=torch.int64, device=device)
        self._slots = torch.zeros(most, dtype=torch.int64, device=device)
        self._context_lens = torch.ones(most, dtype=torch.int32, device=device)
        self._page_table = torch.zeros(most, tables.width, dtype=torch.int32, device=device)
        self._starts = torch.arange(most + 1, dtype=torch.int32, device=device)
        self._rows = torch.arange(most, dtype=torch.int64, device=device)
        self._results = torch.zeros(2, most, dtype=torch.int64, device=device)
        self._sampler = sampler
        self._logits: dict[int, Tensor] = {}
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}
        self._batches = {size: self._attention_batch(size) for size in sizes}

    def size_for(self, rows: int) -> int | None:
        """The smallest captured size that holds so many rows."""
        return next((size for size in self.sizes if size >= rows), None)

    def capture(self, pool: Any, report: Callable[[int], None] = lambda size: None) -> None:
        """Capture all sizes, the largest first so that the smaller ones reuse its memory. On a side stream."""
        for size in reversed(self.sizes):
            self._fill([], [], size)
            batch = self._batches[size]
            for _ in range(2):  # compile and settle
                self._attention.plan(batch)
                self._step(size)
            torch.cuda.current_stream().synchronize()
            graph = torch.cuda.CUDAGraph()
            graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            self._logits[size] = alias(self._step(size))
            graph.capture_end()
            self._graphs[size] = graph
            report(size)

    def replay(self, items: list[StepItem], size: int) -> tuple[Tensor, list[SampleRow] | None]:
        """Run a decode step: each item has one token. Returns the results [2, rows], tokens and validity, and
        the sample rows if the graph's own sampler was not enough: the caller then samples from ``logits``."""
        rows = [sample_row(item) for item in items]
        fast = self._fill(items, rows, size)
        self._attention.plan(self._batches[size])
        self._graphs[size].replay()
        return self._results[:, : len(items)], None if fast else rows

    def logits(self, size: int, rows: int) -> Tensor:
        """The logits of the last replay, [rows, V]; overwritten by the next."""
        return self._logits[size][:rows]

    def _fill(self, items: list[StepItem], rows: list[SampleRow], size: int) -> bool:
        """Stage a step's inputs. Returns whether the graph's sampler can serve all rows."""
        count = len(items)
        host = self._inputs.next()
        host[:, count:size] = 0
        host[SLOT, count:size] = self._tables.scrap_slot
        if count:
            positions = [item.start for item in items]
            host[TOKEN, :count] = [
                item.request.tokens[item.start] if item.start < len(item.request.tokens) else -1 for item in items
            ]
            host[SLOT, :count] = [item.request.slot for item in items]
            host[POSITION, :count] = positions
            batch = self._batches[size]
            batch.context_lens = [position + 1 for position in positions] + [1] * (size - count)
        host[SLOPE, :size] = 0
        seeds = fast_seeds(rows) if rows else None
        if seeds is not None:
            host[SLOPE].view(np.float32)[:count] = seeds[0]
            host[SEED].view(np.uint64)[:count], host[ANSWER_INDEX].view(np.uint64)[:count] = seeds[1:]
        self._inputs.send()
        return seeds is not None

    def _step(self, size: int) -> Tensor:
        """The whole step on the device; returns the logits."""
        inputs = self._inputs.device
        prepare_decode(
            inputs,
            self._last_tokens,
            self._tables.tables,
            self._attention.context.page_size,
            token_ids=self._token_ids[:size],
            slots=self._slots[:size],
            context_lens=self._context_lens[:size],
            page_table=self._page_table[:size],
        )
        batch = ForwardBatch(
            token_ids=self._token_ids[:size],
            positions=inputs[POSITION, :size],
            logit_rows=self._rows[:size],
            attention=self._batches[size],
        )
        logits = self._model.logits(self._model(batch))
        tokens, valid = self._results[0, :size], self._results[1, :size]
        slope = inputs[SLOPE].view(torch.float32)[:size]
        self._sampler.seeded(logits, slope, inputs[SEED, :size], inputs[ANSWER_INDEX, :size], tokens, valid)
        self._last_tokens.index_copy_(0, inputs[SLOT, :size], tokens)
        return logits

    def _attention_batch(self, size: int) -> AttentionBatch:
        return AttentionBatch(
            query_lens=[1] * size,
            context_lens=[1] * size,
            query_starts=self._starts[: size + 1],
            context_lens_d=self._context_lens[:size],
            page_table=self._page_table[:size],
            slots=self._slots[:size],
            graph_key=size,
        )
