"""Steps with prefill chunks: replayed in segments where they are small, launched as they are otherwise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pymllm.engine.cuda.alias import alias
from pymllm.engine.cuda.segments import Segments, attention_interrupts
from pymllm.interfaces.attention import AttentionBackend, AttentionBatch
from pymllm.interfaces.model import ForwardBatch, Model


class PrefillGraphs:
    """A segmented forward pass for each padded number of tokens."""

    def __init__(self, model: Model, attention: AttentionBackend, sizes: list[int]) -> None:
        self._model = model
        self._attention = attention
        self.sizes = sizes
        most = max(sizes, default=0)
        self._inputs = torch.zeros(3 * most, dtype=torch.int64, device=attention.context.device)
        self._segments: dict[int, tuple[Segments, Tensor]] = {}

    def static_inputs(self, tokens: int) -> Tensor | None:
        """[3, size] int64 to fill with token ids, positions and slots for the smallest captured size that holds so
        many tokens; None when there is none."""
        size = next((size for size in self.sizes if size >= tokens), None)
        return None if size is None else self._inputs[: 3 * size].view(3, size)

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
            self._segments[size] = (segments, alias(hidden))
            report(size)

    def forward(self, batch: ForwardBatch, *, replay: bool) -> Tensor:
        """Hidden states of a step's real tokens, [T, C]; a view of static memory if it is replayed, which needs the
        batch to lie in ``static_inputs``."""
        self._attention.plan(batch.attention)
        count = len(batch.attention.slots)
        if not replay:
            hidden: Tensor = self._model(batch)
            return hidden
        segments, padded = self._segments[len(batch.token_ids)]
        segments.tokens = count
        segments.replay()
        return padded[:count]

    def _padding(self, size: int) -> ForwardBatch:
        """A batch of one request whose tokens all lie on the scrap page."""
        self._inputs.zero_()
        page_size = self._attention.context.page_size
        device = self._inputs.device
        token_ids, positions, slots = self._inputs[: 3 * size].view(3, size)
        attention = AttentionBatch(
            query_lens=[size],
            context_lens=[size],
            query_starts=torch.tensor([0, size], dtype=torch.int32, device=device),
            context_lens_d=torch.tensor([size], dtype=torch.int32, device=device),
            page_table=torch.zeros(1, -(-size // page_size), dtype=torch.int32, device=device),
            slots=slots,
        )
        rows = torch.zeros(1, dtype=torch.int64, device=device)
        return ForwardBatch(token_ids=token_ids, positions=positions, logit_rows=rows, attention=attention)
