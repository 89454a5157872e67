"""Draws over many positions of one seed have the distribution that they should, and are not correlated."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pymllm.engine.sampler import SamplingBatch, sample

CPU = torch.device("cpu")
DRAWS = 20_000
LEAST_P_VALUE = 1e-4


def drawn(make_row, logits: np.ndarray, seed: int, **params) -> np.ndarray:
    rows = [make_row(seed=seed, position=position, **params) for position in range(DRAWS)]
    table = torch.from_numpy(logits.astype(np.float32)).expand(DRAWS, -1)
    return sample(table, SamplingBatch.build(rows, len(logits), CPU)).tokens.numpy()


def p_value(counts: np.ndarray, probabilities: np.ndarray) -> float:
    """Of Pearson's chi-square test; what is expected fewer than five times is one bin."""
    assert counts[probabilities == 0].sum() == 0
    expected = probabilities * counts.sum()
    often = expected >= 5
    observed = np.append(counts[often], counts[~often].sum())
    expected = np.append(expected[often], expected[~often].sum())
    observed, expected = observed[expected > 0], expected[expected > 0]
    statistic = ((observed - expected) ** 2 / expected).sum()
    freedom = len(observed) - 1
    return float(torch.special.gammaincc(torch.tensor(freedom / 2.0), torch.tensor(statistic / 2.0)))


@pytest.mark.parametrize("seed", [0, 1, 123456789, 2**63 + 11, -5])
def test_temperature(make_row, seed: int):
    logits = np.random.default_rng(3).normal(size=40)
    probabilities = np.exp(logits / 0.8) / np.exp(logits / 0.8).sum()
    counts = np.bincount(drawn(make_row, logits, seed, temperature=0.8), minlength=40)
    assert p_value(counts, probabilities) > LEAST_P_VALUE


def test_top_k_and_top_p(make_row):
    logits = np.random.default_rng(4).normal(size=300) * 1.5
    order = np.argsort(-logits)
    weights = np.zeros(300)
    weights[order[:60]] = np.exp(logits[order[:60]])
    weights /= weights.sum()
    kept = np.searchsorted(weights[order].cumsum(), 0.9) + 1
    weights[order[kept:]] = 0
    counts = np.bincount(drawn(make_row, logits, 8, top_k=60, top_p=0.9), minlength=300)
    assert p_value(counts, weights / weights.sum()) > LEAST_P_VALUE


def test_neighbouring_positions_and_seeds_are_independent(make_row):
    logits = np.log([0.1, 0.2, 0.3, 0.4])
    pairs = np.outer([0.1, 0.2, 0.3, 0.4], [0.1, 0.2, 0.3, 0.4]).ravel()
    first, second = drawn(make_row, logits, 20), drawn(make_row, logits, 21)
    for left, right in ((first[0::2], first[1::2]), (first, second)):
        assert p_value(np.bincount(left * 4 + right, minlength=16), pairs) > LEAST_P_VALUE
