"""Steps with prefill chunks: replayed in segments where they are small, launched as they are otherwise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from pymllm.engine.cuda.segments import Segments, attention_interrupts
from pymllm.interfaces.attention import AttentionBackend, AttentionBatch
from pymllm.interfaces.model import ForwardBatch, Model


class PrefillGraphs:
    """A segmented forward pass for each padded number of tokens."""

    def __init__(self, model: Model, attention: AttentionBackend, sizes: list[int]) -> None:
        self._model = model
        self._attention = attention
        self.sizes = sizes
        device, most = attention.context.device, max(sizes, default=0)
        self._token_ids, self._positions, self._slots = torch.zeros(3, most, dtype=torch.int64, device=device)
        self._segments: dict[int, tuple[Segments, Tensor]] = {}

    def capture(self, pool: Any, report: Callable[[int], None] = lambda size: None) -> None:
        """Capture all sizes, the largest first. On a side stream."""
        for size in reversed(self.sizes):
            batch = self._padding(size)
            self._attention.plan(batch.attention)
            self._model(batch)  # compile and settle
            torch.cuda.current_stream().synchronize()
            segments = Segments(pool)
            with attention_interrupts(self._model, segments), segments.capture():
                hidden = self._model(batch)
            self._segments[size] = (segments, hidden)
            report(size)

    def forward(self, batch: ForwardBatch) -> Tensor:
        """Hidden states [T, C] of a step; a view of static memory if it was replayed."""
        count = len(batch.token_ids)
        size = next((size for size in self.sizes if size >= count), None)
        if size is None:
            self._attention.plan(batch.attention)
            hidden: Tensor = self._model(batch)
            return hidden
        segments, padded = self._segments[size]
        for static, given in (
            (self._token_ids, batch.token_ids),
            (self._positions, batch.positions),
            (self._slots, batch.attention.slots),
        ):
            static[:count].copy_(given)
            static[count:size].zero_()
        self._attention.plan(replace(batch.attention, slots=self._slots[:count]))
        segments.tokens = count
        segments.replay()
        return padded[:count]

    def _padding(self, size: int) -> ForwardBatch:
        """A batch of one request whose tokens all lie on the scrap page."""
        self._slots.zero_()
        page_size = self._attention.context.page_size
        device = self._slots.device
        attention = AttentionBatch(
            query_lens=[size],
            context_lens=[size],
            query_starts=torch.tensor([0, size], dtype=torch.int32, device=device),
            context_lens_d=torch.tensor([size], dtype=torch.int32, device=device),
            page_table=torch.zeros(1, -(-size // page_size), dtype=torch.int32, device=device),
            slots=self._slots[:size],
        )
        return ForwardBatch(
            token_ids=self._token_ids[:size],
            positions=self._positions[:size],
            logit_rows=torch.zeros(1, dtype=torch.int64, device=device),
            attention=attention,
        )
