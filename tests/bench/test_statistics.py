from __future__ import annotations

import random
import statistics

from pymllm.bench.stats import Spread, spread, summarize


def test_percentiles_are_interpolated_between_neighbours() -> None:
    found = summarize([float(value) for value in range(1, 12)])  # 1 ... 11: ten equal steps
    assert found is not None
    assert (found.count, found.mean, found.p50, found.p90) == (11, 6.0, 6.0, 10.0)
    assert round(found.p99, 12) == 10.9
    assert (found.min, found.max) == (1.0, 11.0)


def test_percentiles_equal_the_standard_library() -> None:
    rng = random.Random(0)
    values = [rng.expovariate(3.0) for _ in range(257)]
    found = summarize(values)
    cuts = statistics.quantiles(values, n=100, method="inclusive")
    assert found is not None
    for value, expected in ((found.p50, cuts[49]), (found.p90, cuts[89]), (found.p95, cuts[94]), (found.p99, cuts[98])):
        assert abs(value - expected) < 1e-12


def test_no_value_is_not_zero() -> None:
    assert summarize([]) is None


def test_a_spread_knows_what_is_better() -> None:
    assert spread([3.0, 1.0, 2.0]) == Spread(2.0, 1.0, 3.0, [3.0, 1.0, 2.0])
    assert spread([3.0, 1.0, 2.0], more_is_better=True) == Spread(2.0, 3.0, 1.0, [3.0, 1.0, 2.0])
