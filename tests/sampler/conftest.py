from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from pymllm.engine.draw import draw
from pymllm.engine.sampling_batch import SampleRow, SamplingBatch
from pymllm.sampling import SamplingParams

CPU = torch.device("cpu")


@pytest.fixture(scope="session")
def make_row() -> Callable[..., SampleRow]:
    """A row from its sampling parameters; seed, position and ids by keyword."""

    def make(
        *, seed: int = 0, position: int = 0, prompt: list[int] = (), output: list[int] = (), ends=(), **params
    ) -> SampleRow:
        filled = SamplingParams(**params).with_defaults({})
        return SampleRow(filled, seed, position, list(prompt), list(output), ends)

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
