"""The Triton passes choose the tokens that the torch code chooses. On a GPU, or under Triton's interpreter
(test_kernels_under_the_interpreter.py starts these tests there)."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch

from pymllm.engine import sampling_batch
from pymllm.engine.kernels.layout import ROWS, Need
from pymllm.engine.kernels.parameters import Packer, RowParameters
from pymllm.engine.philox import uniforms
from pymllm.engine.sample_row import row_constants
from pymllm.engine.sampler import SamplingBatch, sample

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
pytestmark = [] if INTERPRETED else [pytest.mark.gpu]
DEVICE = torch.device("cpu" if INTERPRETED else "cuda")
PLAIN = [{"temperature": 0.0}, {"temperature": 0.3}, {"temperature": 1.0}, {"temperature": 7.0}]
TRUNCATED = [
    {"temperature": 0.6, "top_k": 20, "top_p": 0.95},
    {"top_k": 40},
    {"top_p": 0.9},
    {"top_k": 300, "top_p": 0.7, "temperature": 2.0},
    {"temperature": 0.0, "top_p": 0.5},
    {"top_k": 1},
    {"min_p": 0.05},
    {"top_p": 0.4, "min_p": 0.02, "temperature": 1.5},
    {"top_k": 10**6, "top_p": 0.999},
]
IDS = {"prompt": [1, 1, 2, 40], "output": [3, 3, 5]}
EDITED = [
    {"repetition_penalty": 1.7, "temperature": 0.0, **IDS},
    {"repetition_penalty": 1.05, "temperature": 0.7, "top_p": 0.8, "top_k": 20, **IDS},
    {"presence_penalty": 1.1, "frequency_penalty": 0.7, **IDS},
    {"repetition_penalty": 0.6, "frequency_penalty": -0.3, "logit_bias": {4: 2.0, 3: -1.0}, "top_p": 0.9, **IDS},
    {"logit_bias": dict.fromkeys(range(30), 5.0), "temperature": 2.0},
    {"min_tokens": 5, "ends": [3, 2, 2, 10**7], "top_k": 30, **IDS},
    {"min_tokens": 3, "ends": [3, 2], "top_k": 30, **IDS},
]
SHAPES = [(10, 1500, torch.bfloat16)]
PLAIN_SHAPES = [(5, 3000, torch.float16), (17, 2200, torch.bfloat16)]
if not INTERPRETED:
    SHAPES = [
        (256, 151936, torch.bfloat16),
        (9, 151936, torch.float32),
        (40, 50257, torch.float16),
        (17, 32003, torch.bfloat16),
    ]
    PLAIN_SHAPES += SHAPES


def _logits(rows: int, vocab_size: int, dtype: torch.dtype, seed: int) -> torch.Tensor:
    """Of a row stride that is not the vocabulary; in 16 bits they hold many ties."""
    table = torch.randn(rows, vocab_size + 24, generator=torch.Generator().manual_seed(seed)) * 3
    return table.to(dtype)[:, :vocab_size]


def _torch_choice(logits, rows, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(sampling_batch, "has_kernels", lambda device: False)
        return sample(logits, SamplingBatch.build(rows, logits.shape[1], torch.device("cpu")))


def _draw(logits, rows, need):
    """By the passes of a need, which may be more than that of the rows."""
    parameters = RowParameters.collect(rows, logits.shape[1], DEVICE)
    assert list(Need).index(parameters.need) <= list(Need).index(need)
    return RowParameters(parameters.table, need).draw(logits.to(DEVICE))


def _assert_same(got, want):
    """Up to the last place of exp2, which moves a draw in about one of a million."""
    assert (got.cpu() != want).float().mean() <= (0 if INTERPRETED else 0.001)


@pytest.mark.parametrize("need", Need)
@pytest.mark.parametrize("count, vocab_size, dtype", PLAIN_SHAPES)
def test_plain_rows(make_row, monkeypatch, dtype, count, vocab_size, need):
    logits = _logits(count, vocab_size, dtype, seed=count)
    logits[0, 70] = logits[0, 2000] = 60.0  # a tie of a greedy row, across blocks
    logits[1, 5], logits[2, 6], logits[4, :] = torch.nan, torch.inf, -torch.inf
    logits[3, 100:] = -torch.inf
    rows = [make_row(seed=i * 7**20 - 9, position=3 * i + i * 2**31, **PLAIN[i % 4]) for i in range(count)]
    tokens, valid = _draw(logits, rows, need)
    want = _torch_choice(logits, rows, monkeypatch)
    assert want.tokens[0] == 70
    assert valid.tolist() == want.valid.tolist() == [True, False, False, True, False] + [True] * (count - 5)
    _assert_same(tokens, want.tokens)


@pytest.mark.parametrize("need", [Need.truncated] if INTERPRETED else [Need.truncated, Need.edited])
@pytest.mark.parametrize("count, vocab_size, dtype", SHAPES)
def test_truncated_rows_among_plain_ones(make_row, monkeypatch, dtype, count, vocab_size, need):
    kinds = TRUNCATED + PLAIN
    logits = _logits(count, vocab_size, dtype, seed=3)
    logits[7, 5] = torch.nan
    logits[2, 10:] = 0.5  # a tie of most of the vocabulary, cut by top_p
    rows = [make_row(seed=i, position=i, **kinds[i % len(kinds)]) for i in range(count)]
    tokens, valid = _draw(logits, rows, need)
    want = _torch_choice(logits, rows, monkeypatch)
    assert valid.tolist() == want.valid.tolist()
    _assert_same(tokens, want.tokens)


@pytest.mark.parametrize("count, vocab_size, dtype", SHAPES)
def test_rows_of_every_kind_in_one_batch(make_row, monkeypatch, dtype, count, vocab_size):
    kinds = EDITED + TRUNCATED + PLAIN
    logits = _logits(count, vocab_size, dtype, seed=5)
    logits[:, :6] += 4  # so that edits matter
    logits[0, 1] = logits[2, vocab_size - 1] = torch.nan
    rows = [make_row(seed=i, **kinds[i % len(kinds)]) for i in range(count)]
    got = sample(logits.to(DEVICE), SamplingBatch.build(rows, vocab_size, DEVICE))
    want = _torch_choice(logits, rows, monkeypatch)
    assert got.valid.cpu().tolist() == want.valid.tolist()
    _assert_same(got.tokens, want.tokens)


@pytest.mark.parametrize("vocab_size", [1, 1025] if INTERPRETED else [1, 2, 255, 1023, 1024, 1025])
@pytest.mark.parametrize("count", [6] if INTERPRETED else [6, 18])
def test_small_vocabularies(make_row, monkeypatch, count, vocab_size):
    logits = _logits(count, vocab_size, torch.float32, seed=vocab_size)
    kinds = [{"top_p": 0.9}, {"top_k": 7}, {"temperature": 0.0}, {"min_p": 0.3}, {"presence_penalty": 1.0}, {}]
    rows = [make_row(seed=i, prompt=[0], output=[0, vocab_size - 1], **kinds[i % len(kinds)]) for i in range(count)]
    tokens, valid = _draw(logits, rows, Need.edited)
    assert valid.all()
    assert tokens.tolist() == _torch_choice(logits, rows, monkeypatch).tokens.tolist()


@pytest.mark.skipif(INTERPRETED, reason="slow there")
def test_a_tie_is_cut_by_id_at_every_number(make_row):
    """Hand-worked: of 6000 equal tokens, top_k = 3000 keeps the first 3000, each with the same share."""
    rows = [make_row(top_k=3000, seed=i) for i in range(512)]
    tokens = sample(torch.zeros(512, 6000, device=DEVICE), SamplingBatch.build(rows, 6000, DEVICE)).tokens.cpu()
    assert tokens.tolist() == np.floor(uniforms(range(512), [0] * 512) * 3000).astype(int).tolist()


@pytest.mark.skipif(INTERPRETED, reason="needs a GPU")
@pytest.mark.parametrize("need", Need)
def test_a_graph_replays_new_parameters(make_row, monkeypatch, need):
    """Other rows, positions and edits in each replay; the last rows are padding."""
    kinds = {Need.plain: PLAIN, Need.truncated: TRUNCATED + PLAIN, Need.edited: EDITED + TRUNCATED + PLAIN}[need]
    vocab_size, size = 30_001, 24
    logits = _logits(size, vocab_size, torch.bfloat16, seed=5)
    table = torch.zeros(ROWS, size, dtype=torch.int64, device="cuda")
    parameters = RowParameters(table, need)
    on_gpu = logits.cuda()
    parameters.draw(on_gpu)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        tokens, valid = parameters.draw(on_gpu)
    packer = Packer(vocab_size, DEVICE)
    for step in range(20):
        rows = [make_row(seed=i * 100 + step, **kinds[(i + step) % len(kinds)]) for i in range(size - step % 5)]
        host = np.zeros((ROWS, size), dtype=np.int64)
        positions = np.array([row.position for row in rows])
        packer.pack(host, rows, row_constants(rows), positions)
        table.copy_(torch.from_numpy(host))
        graph.replay()
        assert valid.all()
        _assert_same(tokens[: len(rows)], _torch_choice(logits[: len(rows)], rows, monkeypatch).tokens)
