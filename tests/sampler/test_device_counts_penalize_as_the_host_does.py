"""Penalties from counts on the device equal those from the token history, also when the host lags behind."""

from __future__ import annotations

import gc
import os

import pytest
import torch

from pymllm.engine.kernels.penalties import PenaltyCounts
from pymllm.engine.sampler import SamplingBatch, sample

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not (INTERPRETED or torch.cuda.is_available()), reason="needs a GPU or the interpreter"),
]
DEVICE = torch.device("cpu" if INTERPRETED else "cuda")
V = 300
PENALTIES = [
    {"repetition_penalty": 1.7},
    {"presence_penalty": 1.1, "frequency_penalty": 0.7},
    {},
    {"repetition_penalty": 0.6, "frequency_penalty": -0.3, "logit_bias": {4: 2.0}},
]


def _rows(make_row):
    return [make_row(temperature=0.0, prompt=[1, 1, 2, 40 + i], output=[3, 3], **p) for i, p in enumerate(PENALTIES)]


def test_the_same_tokens_step_by_step(make_row):
    informed, lagging = _rows(make_row), _rows(make_row)
    counts = PenaltyCounts(V, DEVICE)
    for step in range(6):
        logits = torch.randn(4, V, generator=torch.Generator().manual_seed(step)).to(DEVICE)
        logits[:, :6] += 2  # so that penalties matter
        batch = SamplingBatch.build(informed, V, DEVICE)
        kept = SamplingBatch.build(lagging, V, DEVICE, counts)
        assert kept.edits.apply(logits).equal(batch.edits.apply(logits))
        want = sample(logits, batch).tokens.tolist()
        assert sample(logits, kept).tokens.tolist() == want
        for row, token in zip(informed, want):
            row.output_ids.append(token)  # the lagging rows' lists stay as they were


def test_a_thrown_away_token_is_forgotten(make_row):
    row = make_row(temperature=0.0, frequency_penalty=2.0)
    counts = PenaltyCounts(V, DEVICE)
    logits = torch.zeros(1, V, device=DEVICE)
    for _ in range(2):
        assert sample(logits, SamplingBatch.build([row], V, DEVICE, counts)).tokens.tolist() == [0]
        counts.refill(row)
    assert sample(logits, SamplingBatch.build([row], V, DEVICE, counts)).tokens.tolist() == [0]
    assert sample(logits, SamplingBatch.build([row], V, DEVICE, counts)).tokens.tolist() == [1]


def test_memory_is_taken_when_needed_and_reused(make_row):
    counts = PenaltyCounts(V, DEVICE)
    logits = torch.zeros(1, V, device=DEVICE)
    sample(logits, SamplingBatch.build([make_row(temperature=0.0)], V, DEVICE, counts))
    assert counts.bytes == 0
    for _ in range(20):
        row = make_row(temperature=0.0, presence_penalty=1.0, output=[0])
        assert sample(logits, SamplingBatch.build([row], V, DEVICE, counts)).tokens.tolist() == [1]
        del row
        gc.collect()
    assert counts.bytes == 8 * V * 4
