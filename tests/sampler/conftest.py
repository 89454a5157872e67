from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from pymllm.engine.draw import draw
from pymllm.engine.sample_row import SampleRow
from pymllm.engine.sampling_batch import SamplingBatch
from pymllm.sampling import SamplingParams

CPU = torch.device("cpu")


@pytest.fixture(scope="session")
def make_row() -> Callable[..., SampleRow]:
    """A row from its sampling parameters; seed, position (the end of the output) and ids by keyword."""

    def make(
        *, seed: int = 0, position: int | None = None, prompt: list[int] = (), output: list[int] = (), ends=(), **params
    ) -> SampleRow:
        filled = SamplingParams(**params).with_defaults({})
        place = len(output) if position is None else position
        return SampleRow(filled, seed, place, [*prompt, *output], len(prompt), ends)

    return make


@pytest.fixture(scope="session")
def draw_at(make_row) -> Callable[..., Tensor]:
    """Tokens drawn from one row of logits [V] at given uniform numbers [N], whole vocabulary or not."""

    def run(logits: Tensor, numbers: Tensor, *, select: bool = False, **params) -> Tensor:
        group = SamplingBatch.build([make_row(**params)], len(logits), CPU).draws[0]
        group = group.take(torch.zeros(len(numbers), dtype=torch.int64), "select" if select else group.kind, slice(0))
        logits = logits.float().expand(len(numbers), -1)
        return draw(logits, logits.amax(-1, keepdim=True), replace(group, number=numbers.double()[:, None]))

    return run
