"""Extreme parameters, equal logits, and logits that are no numbers."""

from __future__ import annotations

import pytest
import torch

from pymllm.engine.sample_row import GREEDY_BELOW
from pymllm.engine.sampler import SamplingBatch, sample

CPU = torch.device("cpu")
V = 1000
NUMBERS = torch.linspace(0, 1 - 2.0**-53, 501, dtype=torch.float64)


@pytest.fixture
def logits() -> torch.Tensor:
    return torch.randn(V, generator=torch.Generator().manual_seed(0)) * 2


@pytest.mark.parametrize(
    "params",
    [
        {"top_p": 1e-9},
        {"top_p": 1e-300},
        {"top_k": 1},
        {"temperature": 1e-4},
        {"temperature": GREEDY_BELOW},
        {"min_p": 1.0},
        {"top_k": 1, "top_p": 0.5, "min_p": 0.5, "temperature": 100.0},
    ],
)
def test_one_token_is_left(draw_at, logits: torch.Tensor, params: dict[str, float]):
    for select in (False, True):
        assert set(draw_at(logits, NUMBERS, select=select, **params).tolist()) == {int(logits.argmax())}


@pytest.mark.parametrize("params", [{"top_k": 1}, {"top_p": 1e-9}, {"temperature": 0.0}])
def test_of_equal_best_tokens_the_first_is_the_greedy_one(make_row, params: dict[str, float]):
    table = torch.zeros(64, V)
    table[:, [400, 300, 900]] = 5.0
    rows = [make_row(seed=i, **params) for i in range(64)]
    assert sample(table, SamplingBatch.build(rows, V, CPU)).tokens.tolist() == [300] * 64


def test_of_equal_tokens_top_k_keeps_the_first(draw_at):
    table = torch.zeros(V)
    table[700] = 3.0
    for top_k in (5, 190, 300):
        for select in (False, True):
            got = draw_at(table, torch.linspace(0, 1 - 2.0**-53, 1000, dtype=torch.float64), select=select, top_k=top_k)
            assert set(got.tolist()) == {*range(top_k - 1), 700}


def test_min_p_of_one_keeps_all_equal_best(draw_at):
    table = torch.zeros(V)
    table[[10, 500]] = 2.0
    assert set(draw_at(table, NUMBERS, min_p=1.0).tolist()) == {10, 500}


def test_the_highest_temperature_is_nearly_uniform(draw_at):
    table = torch.linspace(-1, 1, V)
    got = draw_at(table, (torch.arange(V) + 0.5) / V, temperature=100.0)
    assert (got - torch.arange(V)).abs().max() <= 5


def test_probabilities_on_the_edge_of_top_p(draw_at):
    """Of (1/2, 1/4, 1/4) a top_p of 1/2 keeps one token, a hair more keeps two, the first of the equal ones."""
    table = torch.full((V,), -torch.inf)
    table[[5, 6, 7]] = torch.tensor([0.25, 0.25, 0.5]).log2().mul(2.0)
    slope = {"temperature": 2.0 / 0.6931471805599453}
    for select in (False, True):
        assert set(draw_at(table, NUMBERS, select=select, top_p=0.5, **slope).tolist()) == {7}
        assert set(draw_at(table, NUMBERS, select=select, top_p=0.5001, **slope).tolist()) == {5, 7}
        assert set(draw_at(table, NUMBERS, select=select, top_p=0.7501, **slope).tolist()) == {5, 6, 7}


@pytest.mark.parametrize("bad", ["nan", "inf", "all -inf", "one nan"])
@pytest.mark.parametrize(
    "params",
    [{"temperature": 0.0}, {}, {"top_p": 0.9}, {"top_k": 5}, {"top_k": 500, "top_p": 0.9}, {"presence_penalty": 1.0}],
)
def test_a_broken_row_is_flagged_and_spoils_no_other(make_row, logits: torch.Tensor, bad: str, params: dict):
    table = logits.repeat(4, 1)
    if bad == "one nan":
        table[1, 77] = torch.nan
    else:
        table[1] = {"nan": torch.nan, "inf": torch.inf, "all -inf": -torch.inf}[bad]
    rows = [make_row(seed=i, output=[3], position=1, **params) for i in range(4)]
    good = sample(logits.repeat(4, 1), SamplingBatch.build(rows, V, CPU))
    got = sample(table, SamplingBatch.build(rows, V, CPU))
    assert good.valid.tolist() == [True] * 4
    assert got.valid.tolist() == [True, False, True, True]
    assert got.tokens.tolist() == [t if i != 1 else 0 for i, t in enumerate(good.tokens.tolist())]


def test_a_nan_under_the_min_tokens_mask_is_seen(make_row, logits: torch.Tensor):
    logits[2] = torch.nan
    batch = SamplingBatch.build([make_row(min_tokens=4, ends=[2])], V, CPU)
    assert sample(logits[None], batch).valid.tolist() == [False]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("size", [1, 3, 64])
def test_greedy_is_the_argmax_in_any_dtype_and_the_logits_stay(make_row, dtype: torch.dtype, size: int):
    table = torch.randn(size, V, generator=torch.Generator().manual_seed(size)).to(dtype)
    before = table.clone()
    plain = [make_row(temperature=0.0, seed=i) for i in range(size)]
    mixed = [make_row(temperature=0.0, top_p=0.5, frequency_penalty=0.5), *plain[1:]]
    for rows in (plain, mixed):
        got = sample(table, SamplingBatch.build(rows, V, CPU))
        assert got.tokens.dtype == torch.int64
        assert got.tokens.tolist() == table.argmax(-1).tolist()
    assert torch.equal(table, before)


@pytest.mark.parametrize("vocab_size", [1, 2, 255, 256, 257])
def test_small_vocabularies(make_row, vocab_size: int):
    table = torch.zeros(30, vocab_size)
    rows = [make_row(seed=i, top_p=0.99, top_k=0 if i % 2 else 7, logprobs=5) for i in range(30)]
    tokens, logprobs = sample(table, SamplingBatch.build(rows, vocab_size, CPU)).to_host()
    assert all(0 <= token < vocab_size for token in tokens)
    assert [len(entry.top) for entry in logprobs] == [min(5, vocab_size)] * 30
