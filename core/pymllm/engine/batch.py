"""Turns a step plan into the tensors that the model, the attention backend and the sampler take."""

from __future__ import annotations

import numpy as np
import torch

from pymllm.engine.plan import StepItem, StepPlan
from pymllm.engine.sampling_batch import SampleRow
from pymllm.interfaces.attention import AttentionBatch
from pymllm.interfaces.model import ForwardBatch


def forward_batch(plan: StepPlan, page_size: int, device: torch.device) -> ForwardBatch:
    """The flat batch of a plan; ``logit_rows`` are the last rows of the items that sample, in order."""
    items = plan.items
    counts = np.array([item.count for item in items], dtype=np.int64)
    ends = np.array([item.start + item.count for item in items], dtype=np.int64)
    starts = np.concatenate([[0], np.cumsum(counts)])
    positions = np.arange(starts[-1]) + np.repeat(ends - starts[1:], counts)
    table = _page_table(items, page_size)
    rows = np.repeat(np.arange(len(items)), counts)
    slots = table[rows, positions // page_size] * page_size + positions % page_size
    tokens = np.array([token for item in items for token in _known_tokens(item)], dtype=np.int64)
    samples = np.array([item.samples for item in items], dtype=bool)

    def tensor(array: np.ndarray, dtype: torch.dtype) -> torch.Tensor:
        host = torch.from_numpy(array).to(dtype)
        return host if device.type == "cpu" else host.pin_memory().to(device, non_blocking=True)

    attention = AttentionBatch(
        query_lens=counts.tolist(),
        context_lens=ends.tolist(),
        query_starts=tensor(starts, torch.int32),
        context_lens_d=tensor(ends, torch.int32),
        page_table=tensor(table, torch.int32),
        slots=tensor(slots, torch.int64),
    )
    return ForwardBatch(
        token_ids=tensor(tokens, torch.int64),
        positions=tensor(positions, torch.int64),
        logit_rows=tensor(starts[1:][samples] - 1, torch.int64),
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
