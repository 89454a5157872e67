"""Steps with prefill chunks: replayed in segments where they are small, launched as they are otherwise."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from pymllm.engine.cuda.alias import alias
from pymllm.engine.cuda.inputs import StepInputs
from pymllm.engine.cuda.segments import Segments, interruptions
from pymllm.interfaces.attention import AttentionBackend, AttentionBatch
from pymllm.interfaces.media import MediaRows
from pymllm.interfaces.model import ForwardBatch, Model


class PrefillGraphs:
    """A segmented forward pass for each padded number of tokens."""

    def __init__(self, model: Model, attention: AttentionBackend, inputs: StepInputs, sizes: list[int]) -> None:
        self._model = model
        self._attention = attention
        self._inputs = inputs
        self.sizes = sizes
        self._segments: dict[int, tuple[Segments, Tensor]] = {}

    def size_for(self, tokens: int) -> int | None:
        """The smallest captured size that holds so many tokens."""
        return next((size for size in self.sizes if size >= tokens), None)

    def capture(self, size: int, pool: Any) -> None:
        """Capture a size, after all larger ones. On a side stream."""
        batch = self._padding(size)
        self._attention.plan(batch.attention)
        self._model(batch)  # compile and settle
        torch.cuda.current_stream().synchronize()
        segments = Segments(pool)
        with interruptions(self._model, segments), segments.capture():
            hidden = self._model(batch)
        self._segments[size] = (segments, alias(hidden))

    def forget(self) -> None:
        """Drop what was captured."""
        self._segments.clear()

    def forward(self, batch: ForwardBatch, *, replay: bool) -> Tensor:
        """Hidden states of a step's real tokens, [T, C]; a view of static memory if it is replayed, which needs the
        batch to be sent for the size of a graph."""
        plan = partial(self._attention.plan, batch.attention)
        if not replay:
            plan()
            hidden: Tensor = self._model(batch)
            return hidden
        count = len(batch.attention.slots)
        segments, padded = self._segments[len(batch.token_ids)]
        segments.tokens, segments.media = count, batch.media
        segments.replay(plan)
        return padded[:count]

    def _padding(self, size: int) -> ForwardBatch:
        """A batch of one request whose tokens all lie on the scrap page, with no rows of media where there might be."""
        page_size, device = self._attention.context.page_size, self._attention.context.device
        token_ids, positions, slots = (tensor.zero_() for tensor in self._inputs.static(size))
        attention = AttentionBatch(
            query_lens=[size],
            context_lens=[size],
            query_starts=torch.tensor([0, size], dtype=torch.int32, device=device),
            context_lens_d=torch.tensor([size], dtype=torch.int32, device=device),
            page_table=torch.zeros(1, -(-size // page_size), dtype=torch.int32, device=device),
            slots=slots,
        )
        rows = torch.zeros(1, dtype=torch.int64, device=device)
        width = self._model.media_width
        nothing = torch.empty(0, width, dtype=self._attention.context.dtype, device=device)
        media = MediaRows(rows[:0], nothing) if width else None
        return ForwardBatch(token_ids=token_ids, positions=positions, logit_rows=rows, attention=attention, media=media)
