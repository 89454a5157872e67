"""The Triton passes choose the tokens that the torch code chooses. On a GPU, or under Triton's interpreter
(test_kernels_under_the_interpreter.py starts these tests there)."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch

from pymllm.engine import sampling_batch
from pymllm.engine.kernels.sample import FastSampler, fast_parameters, fast_seeds
from pymllm.engine.sampler import SamplingBatch, sample

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not (INTERPRETED or torch.cuda.is_available()), reason="needs a GPU or the interpreter"),
]
DEVICE = torch.device("cpu" if INTERPRETED else "cuda")
PLAIN = [{"temperature": 0.0}, {"temperature": 0.3}, {"temperature": 1.0}, {"temperature": 7.0}]
TRUNCATED = [
    {"top_k": 40},
    {"top_p": 0.9},
    {"top_k": 300, "top_p": 0.7, "temperature": 2.0},
    {"temperature": 0.0},
    {"min_p": 0.05},
    {"top_p": 0.4, "min_p": 0.02, "temperature": 1.5},
]


def _logits(rows: int, vocab_size: int, dtype: torch.dtype, seed: int) -> torch.Tensor:
    """Of a row stride that is not the vocabulary; in 16 bits they hold many ties."""
    table = torch.randn(rows, vocab_size + 24, generator=torch.Generator().manual_seed(seed)) * 3
    return table.to(dtype)[:, :vocab_size]


def _torch_choice(logits, rows, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(sampling_batch, "has_kernels", lambda device: False)
        return sample(logits, SamplingBatch.build(rows, logits.shape[1], torch.device("cpu")))


def _assert_same(got, want):
    """Up to the last place of exp2, which moves a draw in about one of a million."""
    assert (got.cpu() != want).float().mean() <= (0 if INTERPRETED else 0.001)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("count, vocab_size", [(5, 3000), (20, 5120)] if INTERPRETED else [(5, 3000), (256, 151936)])
def test_plain_rows(make_row, monkeypatch, dtype, count, vocab_size):
    logits = _logits(count, vocab_size, dtype, seed=count)
    logits[0, 70] = logits[0, 2000] = 60.0  # a tie of a greedy row, across blocks
    logits[1, 5], logits[2, 6], logits[4, :] = torch.nan, torch.inf, -torch.inf
    logits[3, 100:] = -torch.inf
    rows = [make_row(seed=i * 7**20 - 9, position=3 * i + i * 2**31, **PLAIN[i % 4]) for i in range(count)]
    slope, number = (torch.from_numpy(array.copy()).to(DEVICE) for array in fast_parameters(rows))
    tokens = torch.full((count,), -1, dtype=torch.int64, device=DEVICE)
    valid = torch.full((count,), 7, dtype=torch.int64, device=DEVICE)
    sampler = FastSampler(count + 1, vocab_size, DEVICE)
    sampler(logits.to(DEVICE), slope, number, tokens, valid)
    want = _torch_choice(logits, rows, monkeypatch)
    assert want.tokens[0] == 70
    seeds, positions = (torch.from_numpy(array.view(np.int64).copy()).to(DEVICE) for array in fast_seeds(rows)[1:])
    seeded = torch.empty_like(tokens)
    sampler.seeded(logits.to(DEVICE), slope, seeds, positions, seeded, torch.empty_like(valid))
    assert seeded.equal(tokens)
    assert valid.tolist() == want.valid.long().tolist() == [1, 0, 0, 1, 0] + [1] * (count - 5)
    _assert_same(tokens, want.tokens)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_truncated_rows(make_row, monkeypatch, dtype):
    count, vocab_size = (12, 2500) if INTERPRETED else (240, 50_000)
    logits = _logits(count, vocab_size, dtype, seed=3)
    logits[7, 5] = torch.nan
    logits[1, 10:] = 0.5  # a tie of most of the vocabulary, cut by top_p
    rows = [make_row(seed=i, position=i, **TRUNCATED[i % len(TRUNCATED)]) for i in range(count)]
    got = sample(logits.to(DEVICE), SamplingBatch.build(rows, vocab_size, DEVICE))
    want = _torch_choice(logits, rows, monkeypatch)
    assert got.valid.cpu().tolist() == want.valid.tolist()
    _assert_same(got.tokens, want.tokens)


@pytest.mark.skipif(INTERPRETED, reason="slow there")
def test_a_tie_is_cut_by_id_at_every_number(make_row):
    """Hand-worked: of 6000 equal tokens, top_k = 3000 keeps the first 3000, each with the same share."""
    rows = [make_row(top_k=3000, seed=i) for i in range(512)]
    tokens = sample(torch.zeros(512, 6000, device=DEVICE), SamplingBatch.build(rows, 6000, DEVICE)).tokens.cpu()
    numbers = fast_parameters([make_row(seed=i) for i in range(512)])[1]
    assert tokens.tolist() == np.floor(numbers * 3000).astype(int).tolist()


@pytest.mark.skipif(INTERPRETED, reason="needs a GPU")
def test_a_graph_replays_new_numbers(make_row):
    logits = _logits(8, 30_000, torch.bfloat16, seed=5).cuda()
    rows = [make_row(seed=i) for i in range(8)]
    slope = torch.zeros(8, device="cuda")
    number = torch.zeros(8, dtype=torch.float64, device="cuda")
    tokens, valid = torch.zeros(2, 8, dtype=torch.int64, device="cuda")
    sampler = FastSampler(8, 30_000, DEVICE)
    sampler(logits, slope, number, tokens, valid)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        sampler(logits, slope, number, tokens, valid)
    for position in range(20):
        for row in rows:
            row.position = position
        for buffer, array in zip((slope, number), fast_parameters(rows)):
            buffer.copy_(torch.from_numpy(array.copy()))
        graph.replay()
        assert tokens.equal(sample(logits, SamplingBatch.build(rows, 30_000, DEVICE)).tokens)
