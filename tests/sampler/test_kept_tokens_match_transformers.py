"""top_k, top_p, min_p and temperature keep and weigh the tokens that transformers' warpers do.

The draw is an inverse CDF in order of id, so a number in the middle of a token's interval (computed here
in float64 from transformers' output) must give exactly that token; a token kept too many or too few moves
all intervals after it.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from pymllm.engine.rank_select import select_by_bin, select_by_radix

CASES = [
    {"temperature": 0.7},
    {"temperature": 1.0, "top_p": 0.9},
    {"temperature": 2.5, "top_p": 0.97},
    {"temperature": 0.3, "top_p": 0.2},
    {"temperature": 1.3, "top_k": 1},
    {"temperature": 1.3, "top_k": 50},
    {"temperature": 1.3, "top_k": 700},
    {"temperature": 1.0, "min_p": 0.05},
    {"temperature": 0.9, "top_k": 40, "top_p": 0.8},
    {"temperature": 1.5, "top_k": 190, "top_p": 0.999},
    {"temperature": 1.5, "top_k": 300, "top_p": 0.9, "min_p": 0.02},
    {"temperature": 1.0, "top_p": 0.95, "min_p": 0.1},
    {"temperature": 1.0, "top_k": 10**6, "top_p": 1.0, "min_p": 0.0},
]
WARPERS = {
    "temperature": TemperatureLogitsWarper,
    "top_k": TopKLogitsWarper,
    "top_p": TopPLogitsWarper,
    "min_p": MinPLogitsWarper,
}


def warped(logits: torch.Tensor, case: dict[str, float]) -> np.ndarray:
    """Probabilities after transformers' warpers, float64 [V]."""
    chain = LogitsProcessorList([WARPERS[name](value) for name, value in case.items() if value])
    scores = chain(torch.zeros(1, 1, dtype=torch.int64), logits[None].double())
    return scores[0].softmax(-1).numpy()


def draws(draw_at, logits: torch.Tensor, case: dict[str, float], select: bool) -> None:
    probabilities = warped(logits, case)
    ends = probabilities.cumsum()
    tokens = np.flatnonzero(probabilities > 1e-4)
    middles = ends[tokens] - probabilities[tokens] / 2
    got = draw_at(logits, torch.from_numpy(middles), select=select, **case)
    assert got.tolist() == tokens.tolist()
    kept = np.flatnonzero(probabilities > 1e-11)
    extremes = draw_at(logits, torch.tensor([0.0, 1.0 - 2.0**-53]), select=select, **case)
    assert extremes[0] == kept[0]
    assert extremes[1] == kept[-1]


@pytest.mark.parametrize("select", [False, True], ids=["candidates", "select"])
@pytest.mark.parametrize("spread", [0.5, 1.5, 4.0], ids=["flat", "middling", "peaked"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: " ".join(f"{k}={v}" for k, v in case.items()))
def test_every_kept_token_has_its_share(draw_at, case: dict[str, float], spread: float, select: bool):
    logits = torch.randn(1500, generator=torch.Generator().manual_seed(11)) * spread
    draws(draw_at, logits, case, select)


def test_logit_of_minus_infinity_is_never_drawn(draw_at):
    logits = torch.randn(600, generator=torch.Generator().manual_seed(5))
    logits[::2] = -torch.inf
    for case in ({}, {"top_p": 0.9999}, {"top_k": 500}, {"top_k": 100}):
        got = draw_at(logits, torch.linspace(0, 1 - 2**-53, 3000, dtype=torch.float64), **case)
        assert (got % 2 == 1).all()


@pytest.mark.parametrize("select", [select_by_bin, select_by_radix])
@pytest.mark.parametrize("levels", [3, 40, 2**31])
def test_selection_by_rank_equals_a_sort(select, levels: int):
    """Also with many equal keys, zero amounts, and targets on the very edge of a running sum."""
    generator = np.random.default_rng(levels)
    keys = generator.integers(0, levels, size=(12, 400)).astype(np.int32)
    amounts = generator.integers(0, 4, size=keys.shape) * generator.integers(1, 2**40, size=keys.shape)
    target = np.empty((len(keys), 1), dtype=np.int64)
    kept = np.zeros(keys.shape, dtype=bool)
    for row in range(len(keys)):
        order = np.lexsort((np.arange(keys.shape[1]), keys[row]))
        running = amounts[row, order].cumsum()
        target[row] = [1, running[-1], running[150], running[150] + 1][row % 4]
        kept[row, order] = running - amounts[row, order] < target[row]
    got = select(torch.from_numpy(keys), torch.from_numpy(amounts), torch.from_numpy(target))
    assert (got.numpy() == kept).all()
