"""Turns a step plan into the tensors that the model, the attention backend and the sampler take."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch

from pymllm.engine.plan import StepItem, StepPlan
from pymllm.engine.request import Request
from pymllm.engine.sample_row import SampleRow
from pymllm.interfaces.attention import AttentionBatch
from pymllm.interfaces.media import MediaRows
from pymllm.interfaces.model import ForwardBatch


@dataclass(frozen=True)
class StepArrays:
    """A step's lists, on the host, int64. tokens, slots: [T]. positions: [T], or [axes, T] for a model with several
    axes. starts: [R + 1] first rows, then T. ends: [R]
    context lengths after the step. table: [R, P] pages, filled up with 0. logit_rows: [S]."""

    tokens: np.ndarray
    positions: np.ndarray
    slots: np.ndarray
    starts: np.ndarray
    ends: np.ndarray
    table: np.ndarray
    logit_rows: np.ndarray

    @classmethod
    def build(cls, plan: StepPlan, page_size: int, axes: int = 1) -> StepArrays:
        """``logit_rows`` are the last rows of the items that sample, in order."""
        items = plan.items
        counts = np.array([item.count for item in items], dtype=np.int64)
        ends = np.array([item.start + item.count for item in items], dtype=np.int64)
        starts = np.concatenate([[0], np.cumsum(counts)])
        table = _page_table(items, page_size)
        samples = np.array([item.samples for item in items], dtype=bool)
        arrays = cls(
            tokens=np.empty(starts[-1], dtype=np.int64),
            positions=np.empty(starts[-1], dtype=np.int64),
            slots=np.empty(starts[-1], dtype=np.int64),
            starts=starts,
            ends=ends,
            table=table,
            logit_rows=starts[1:][samples] - 1,
        )
        single = np.flatnonzero(counts == 1)
        arrays._fill_single([items[i] for i in single], single, page_size)
        for i in np.flatnonzero(counts > 1).tolist():
            arrays._fill_chunk(items[i], i, page_size)
        if axes == 1:
            return arrays
        rotary = [item.request.rotary(item.start, item.count, axes) for item in items]
        return replace(arrays, positions=np.concatenate(rotary, axis=1))

    def _fill_single(self, items: list[StepItem], places: np.ndarray, page_size: int) -> None:
        """The rows of items with one token. places: of the items in the plan."""
        rows, positions = self.starts[places], self.ends[places] - 1
        self.tokens[rows] = [_known_tokens(item)[0] for item in items]
        self.positions[rows] = positions
        self.slots[rows] = self.table[places, positions // page_size] * page_size + positions % page_size

    def _fill_chunk(self, item: StepItem, place: int, page_size: int) -> None:
        """The rows of an item with several tokens, page by page: faster than a division for each token."""
        rows = slice(self.starts[place], self.starts[place + 1])
        end, prompt = item.start + item.count, item.request.spec.ids
        self.tokens[rows] = prompt[item.start : end] if end <= len(prompt) else _known_tokens(item)
        self.positions[rows] = np.arange(item.start, end)
        first, last = item.start // page_size, -(-end // page_size)
        slots = (self.table[place, first:last, None] * page_size + np.arange(page_size)).ravel()
        self.slots[rows] = slots[item.start - first * page_size :][: item.count]


def forward_batch(
    plan: StepPlan, page_size: int, device: torch.device, *, axes: int = 1, media: MediaRows | None = None
) -> ForwardBatch:
    """The flat batch of a plan."""
    arrays = StepArrays.build(plan, page_size, axes)

    def tensor(array: np.ndarray, dtype: torch.dtype = torch.int64) -> torch.Tensor:
        return torch.from_numpy(array).to(device=device, dtype=dtype)

    attention = AttentionBatch(
        query_lens=np.diff(arrays.starts).tolist(),
        context_lens=arrays.ends.tolist(),
        query_starts=tensor(arrays.starts, torch.int32),
        context_lens_d=tensor(arrays.ends, torch.int32),
        page_table=tensor(arrays.table, torch.int32),
        slots=tensor(arrays.slots),
    )
    return ForwardBatch(
        token_ids=tensor(arrays.tokens),
        positions=tensor(arrays.positions),
        logit_rows=tensor(arrays.logit_rows),
        attention=attention,
        media=media,
    )


def _known_tokens(item: StepItem) -> list[int]:
    """The item's tokens; 0 for one that a step in flight samples, which only the runner knows."""
    known = item.request.tokens[item.start : item.start + item.count]
    return known + [0] * (item.count - len(known))


def _page_table(items: list[StepItem], page_size: int) -> np.ndarray:
    """[R, P] int64: the pages that each item's context lies in, filled up with page 0."""
    used = [-(-(item.start + item.count) // page_size) for item in items]
    table = np.zeros((len(items), max(used)), dtype=np.int64)
    for row, (item, count) in enumerate(zip(items, used)):
        table[row, :count] = item.request.pages[:count]
    return table


def sample_rows(items: list[StepItem]) -> list[SampleRow]:
    """What the sampler needs to draw the items' tokens, but for their positions. One object serves a request for
    life."""
    return [item.request.row or _new_row(item.request) for item in items]


def sample_row(item: StepItem) -> SampleRow:
    """The item's row, at the position of its token."""
    row = item.request.row or _new_row(item.request)
    row.position = item.answer_index
    return row


def _new_row(request: Request) -> SampleRow:
    request.row = SampleRow(
        params=request.spec.sampling,
        seed=request.seed,
        position=0,
        tokens=request.tokens,
        prompt_length=request.prompt_length,
        end_token_ids=sorted(request.end_tokens),
    )
    return request.row
