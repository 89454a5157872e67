"""Decode steps as replays of CUDA graphs: one of the model for each padded size, and one that samples."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from pymllm.engine.cuda.graph import captured
from pymllm.engine.cuda.prepare import prepare_decode
from pymllm.engine.cuda.sampler import POSITION, ROTARY, TOKEN, Ask, StepSampler
from pymllm.engine.cuda.tables import PageTables
from pymllm.engine.kernels.layout import Need
from pymllm.engine.plan import ItemResult, StepItem
from pymllm.interfaces.attention import AttentionBackend, AttentionBatch, GraphKey
from pymllm.interfaces.model import ForwardBatch, Model


class DecodeGraphs:
    """Static buffers for up to ``sizes[-1]`` rows, and a graph for each size, which ends with the logits.

    The sampler has a small graph for each size and :class:`Need`, and a step replays one after the other: so the model
    is captured once, however many ways there are to sample.
    last_tokens: [slots + 1] int64, by request slot, shared with the sampler.
    """

    def __init__(
        self,
        model: Model,
        attention: AttentionBackend,
        tables: PageTables,
        last_tokens: Tensor,
        sizes: list[int],
        sampler: StepSampler,
    ) -> None:
        self._model = model
        self._attention = attention
        self._tables = tables
        self._last_tokens = last_tokens
        self.sizes = sizes
        device, most = attention.context.device, sizes[-1]
        self._token_ids = torch.zeros(most, dtype=torch.int64, device=device)
        self._slots = torch.zeros(most, dtype=torch.int64, device=device)
        self._context_lens = torch.ones(most, dtype=torch.int32, device=device)
        self._page_table = torch.zeros(most, tables.width, dtype=torch.int32, device=device)
        self._starts = torch.arange(most + 1, dtype=torch.int32, device=device)
        self._rows = torch.arange(most, dtype=torch.int64, device=device)
        self._sampler = sampler
        self._replays: dict[int, Callable[[], None]] = {}
        self._batches = {size: self._attention_batch(size) for size in sizes}

    def size_for(self, rows: int) -> int | None:
        """The smallest captured size that holds so many rows."""
        return next((size for size in self.sizes if size >= rows), None)

    def capture(self, size: int, pool: Any) -> None:
        """Capture a size, after all larger ones, so that it reuses their memory. On a side stream."""
        self._settle(size)
        self._replays[size], logits = captured(pool, partial(self._forward, size))
        # The logits are held until here, so that nothing that drawing needs is put into their memory.
        self._sampler.capture(logits, pool)

    def forget(self) -> None:
        """Drop what was captured."""
        self._replays.clear()
        self._sampler.forget()

    def _settle(self, size: int) -> None:
        """Compile all that a step of this size launches, and let what allocates once do so."""
        self._stage([], size)
        for _ in range(2):
            self._attention.plan(self._batches[size])
            logits = self._forward(size)
        for need in Need:
            self._sampler.draw(need, logits)
        torch.cuda.current_stream().synchronize()

    def replay(self, items: list[StepItem], size: int) -> Callable[[], list[ItemResult]]:
        """Run a decode step: each item has one token. What is returned waits for the results."""
        ask = self._stage(items, size)
        self._attention.plan(self._batches[size])
        self._replays[size]()
        return self._sampler.answer(ask, self._sampler.replay(ask.need, size))

    def _stage(self, items: list[StepItem], size: int) -> Ask:
        """Send a step's inputs."""
        count = len(items)
        host = self._sampler.inputs.next()
        ask = self._sampler.ask(host, items, size)
        starts = [item.start for item in items]
        host[TOKEN, :count] = [
            request.tokens[start] if start < len(request.tokens) else -1
            for request, start in zip([item.request for item in items], starts)
        ]
        host[POSITION, :count] = starts
        if self._model.position_axes > 1:
            host[ROTARY, :count] = [item.start + item.request.spec.position_delta for item in items]
        self._batches[size].context_lens = [start + 1 for start in starts] + [1] * (size - count)
        self._sampler.inputs.send()
        return ask

    def _forward(self, size: int) -> Tensor:
        """The model's part of a step on the device; returns the logits."""
        inputs, axes = self._sampler.inputs.device, self._model.position_axes
        prepare_decode(
            inputs[TOKEN:],
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
            positions=inputs[POSITION, :size] if axes == 1 else inputs[ROTARY, :size].expand(axes, -1),
            logit_rows=self._rows[:size],
            attention=self._batches[size],
        )
        logits: Tensor = self._model.logits(self._model(batch))
        return logits

    def _attention_batch(self, size: int) -> AttentionBatch:
        return AttentionBatch(
            query_lens=[1] * size,
            context_lens=[1] * size,
            query_starts=self._starts[: size + 1],
            context_lens_d=self._context_lens[:size],
            page_table=self._page_table[:size],
            slots=self._slots[:size],
            graph_key=GraphKey(size, size),
        )
