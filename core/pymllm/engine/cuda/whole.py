"""Steps of a few whole prompts as replays of one CUDA graph, attention included."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch

from pymllm.engine.batch import StepArrays
from pymllm.engine.cuda.graph import captured
from pymllm.engine.cuda.inputs import by_axis, token_arrays, token_fields
from pymllm.engine.cuda.packed import PackedArrays
from pymllm.engine.cuda.sampler import SLOT, StepSampler
from pymllm.engine.cuda.tables import PageTables
from pymllm.engine.media import has_media
from pymllm.engine.plan import ItemResult, StepPlan
from pymllm.interfaces.attention import AttentionBackend, AttentionBatch, GraphKey
from pymllm.interfaces.model import ForwardBatch, Model

MOST_PROMPTS = 8
"""Prompts that a replayed step may hold; with more of them it is long enough to launch it piece by piece."""


class WholePrefillGraphs:
    """Static inputs for up to ``sizes[-1]`` tokens of up to ``MOST_PROMPTS`` prompts, and a graph for each size.

    As with decodes, the model's graphs end with the logits, here all in the same memory.
    """

    def __init__(
        self,
        model: Model,
        attention: AttentionBackend,
        tables: PageTables,
        sampler: StepSampler,
        sizes: list[int],
        vocab_size: int,
    ) -> None:
        self._model = model
        self._attention = attention
        self._tables = tables
        self._sampler = sampler
        self.sizes = sizes
        self._prompts = min(MOST_PROMPTS, tables.scrap_slot)
        device, dtype = attention.context.device, attention.context.dtype
        self._axes = model.position_axes
        self._inputs = PackedArrays(device, 8 * (self._axes + 3) * max(sizes, default=1) + 64 * (self._prompts + 4))
        self._page_table = torch.zeros(self._prompts, tables.width, dtype=torch.int32, device=device)
        self._logits = torch.zeros(self._prompts, vocab_size, dtype=dtype, device=device)
        self._replays: dict[int, Callable[[], None]] = {}

    def size_for(self, plan: StepPlan) -> int | None:
        """The smallest captured size that a step can be replayed with: one that computes prompts, or what the cache
        left of them, to their ends, and nothing else."""
        if len(plan.items) > self._prompts:
            return None
        for item in plan.items:
            if not item.samples or item.count < 2 or item.request.wants_prompt_logprobs or has_media(item):
                return None
        tokens = plan.tokens
        return next((size for size in self.sizes if size >= tokens), None)

    def capture(self, size: int, pool: Any) -> None:
        """Capture a size, after all larger ones. On a side stream."""
        batch = self._send(size, _padding(size))
        for _ in range(2):  # compile and settle
            self._attention.plan(batch.attention)
            self._forward(batch)
        torch.cuda.current_stream().synchronize()
        self._replays[size], _ = captured(pool, partial(self._forward, batch))

    def forget(self) -> None:
        """Drop what was captured."""
        self._replays.clear()

    def replay(self, plan: StepPlan, size: int) -> Callable[[], list[ItemResult]]:
        """Run a step. What is returned waits for the results."""
        ask = self._sampler.ask(self._sampler.inputs.next(), plan.items, self._prompts)
        self._sampler.inputs.send()
        batch = self._send(size, StepArrays.build(plan, self._attention.context.page_size, self._axes))
        self._attention.plan(batch.attention)
        self._replays[size]()
        logits = self._logits[: len(plan.items)]
        self._sampler.draw_by_graph(ask.need, logits)
        return self._sampler.answer(ask, logits)

    def _send(self, size: int, arrays: StepArrays) -> ForwardBatch:
        """Send a step's inputs to where the graph of that size reads them. Requests that are not there have no tokens,
        neither new ones nor a context."""
        prompts, count = self._prompts, len(arrays.ends)
        starts = np.full(prompts + 1, arrays.starts[-1])
        starts[: count + 1] = arrays.starts
        tokens, positions, slots, rows, starts_d, ends = self._inputs.send(
            (*token_arrays(arrays, size), arrays.logit_rows, starts, arrays.ends),
            [*token_fields(size, self._axes), (prompts, np.int64), (prompts + 1, np.int32), (prompts, np.int32)],
        )
        attention = AttentionBatch(
            query_lens=np.diff(arrays.starts).tolist(),
            context_lens=arrays.ends.tolist(),
            query_starts=starts_d,
            context_lens_d=ends,
            page_table=self._page_table,
            slots=slots,
            graph_key=GraphKey(prompts, size),
        )
        positions = by_axis(positions, self._axes)
        return ForwardBatch(token_ids=tokens, positions=positions, logit_rows=rows, attention=attention)

    def _forward(self, batch: ForwardBatch) -> None:
        """What the graph holds: from the inputs to the logits."""
        slots = self._sampler.inputs.device[SLOT, : self._prompts]
        torch.index_select(self._tables.tables, 0, slots, out=self._page_table)
        hidden = self._model(batch)
        self._logits.copy_(self._model.logits(hidden.index_select(0, batch.logit_rows)))


def _padding(size: int) -> StepArrays:
    """One request whose tokens all lie on the scrap page."""
    zeros = np.zeros(size, dtype=np.int64)
    one = np.zeros(1, dtype=np.int64)
    return StepArrays(
        tokens=zeros,
        positions=zeros,
        slots=zeros,
        starts=np.array([0, size]),
        ends=np.array([size]),
        table=one[None],
        logit_rows=one,
    )
