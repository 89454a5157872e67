"""Turns a step plan into the tensors that the model, the attention backend and the sampler take."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from pymllm.engine.plan import StepItem, StepPlan
from pymllm.engine.sampling_batch import SampleRow
from pymllm.interfaces.attention import AttentionBatch
from pymllm.interfaces.model import ForwardBatch


@dataclass(frozen=True)
class StepArrays:
    """A step's lists, on the host, int64. tokens, positions, slots: [T]. starts: [R + 1] first rows, then T. ends: [R]
    context lengths after the step. table: [R, P] pages, filled up with 0. logit_rows: [S]."""

    tokens: np.ndarray
    positions: np.ndarray
    slots: np.ndarray
    starts: np.ndarray
    ends: np.ndarray
    table: np.ndarray
    logit_rows: np.ndarray

    @classmethod
    def build(cls, plan: StepPlan, page_size: int) -> StepArrays:
        """``logit_rows`` are the last rows of the items that sample, in order."""
        items = plan.items
        counts = np.array([item.count for item in items], dtype=np.int64)
        ends = np.array([item.start + item.count for item in items], dtype=np.int64)
        starts = np.concatenate([[0], np.cumsum(counts)])
        positions = np.arange(starts[-1]) + np.repeat(ends - starts[1:], counts)
        table = _page_table(items, page_size)
        rows = np.repeat(np.arange(len(items)), counts)
        samples = np.array([item.samples for item in items], dtype=bool)
        return cls(
            tokens=np.array([token for item in items for token in _known_tokens(item)], dtype=np.int64),
            positions=positions,
            slots=table[rows, positions // page_size] * page_size + positions % page_size,
            starts=starts,
            ends=ends,
            table=table,
            logit_rows=starts[1:][samples] - 1,
        )


def forward_batch(plan: StepPlan, page_size: int, device: torch.device) -> ForwardBatch:
    """The flat batch of a plan."""
    arrays = StepArrays.build(plan, page_size)

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


def sample_row(item: StepItem) -> SampleRow:
    """What the sampler needs to draw the token of an item. One object serves the request for life."""
    request = item.request
    row = request.row
    if row is None:
        row = request.row = SampleRow(
            params=request.spec.sampling,
            seed=request.seed,
            position=0,
            prompt_ids=request.spec.token_ids,
            output_ids=[],
            end_token_ids=sorted(request.end_tokens),
        )
    row.output_ids += request.tokens[request.prompt_length + len(row.output_ids) :]
    row.position = item.answer_index
    return row
