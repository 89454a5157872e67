from __future__ import annotations

import math
import random

import numpy as np
import pytest

from pymllm.bench.requests import arrivals
from pymllm.bench.workload import Lengths, offline_workload, unlike_prompts


def test_the_offline_workload_is_the_published_one() -> None:
    work = offline_workload(256, Lengths(100, 1024), Lengths(100, 1024), 0, 151_936)
    assert sum(one.max_tokens for one in work) == 133_966  # nano-vllm's README, seed 0
    random.seed(0)
    first = [random.randint(0, 10000) for _ in range(random.randint(100, 1024))]
    assert work[0].prompt == first


def test_ids_stay_below_a_small_vocabulary() -> None:
    work = offline_workload(20, Lengths(50, 60), Lengths(3, 3), 0, 288)
    ids = {token for one in work for token in one.prompt}
    assert max(ids) == 287
    assert min(ids) == 0
    assert all(50 <= len(one.prompt) <= 60 and one.max_tokens == 3 for one in work)


def test_prompts_share_their_prefix_and_nothing_more() -> None:
    prompts = unlike_prompts(random.Random(0), 8, 12, 288, prefix=[7, 8, 9])
    assert all(len(prompt) == 12 and prompt[:3] == [7, 8, 9] for prompt in prompts)
    assert len({prompt[3] for prompt in prompts}) == 8


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_gaps_have_the_rate_and_the_burstiness(burstiness: float) -> None:
    count = 20_000
    gaps = np.diff(arrivals(count, 50.0, burstiness, 0))
    assert len(gaps) == count - 1
    assert (gaps >= 0).all()
    # A gamma distribution of shape k has the coefficient of variation 1 / sqrt(k); five standard errors.
    variation = 1 / math.sqrt(burstiness)
    assert abs(gaps.mean() * 50.0 - 1) < 5 * variation / math.sqrt(count)
    assert abs(gaps.std() / gaps.mean() / variation - 1) < 0.1


def test_an_infinite_rate_lets_all_arrive_at_once() -> None:
    assert arrivals(3, math.inf, 1.0, 0) == [0.0, 0.0, 0.0]


def test_a_seed_decides_the_arrivals() -> None:
    assert arrivals(10, 2.0, 1.0, 5) == arrivals(10, 2.0, 1.0, 5) != arrivals(10, 2.0, 1.0, 6)
