"""Statistics of measured values. An absent value is None, never zero."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Summary:
    """A distribution, in the unit of its values. p50 to p99: percentiles, linearly interpolated."""

    count: int
    mean: float
    p50: float
    p90: float
    p95: float
    p99: float
    min: float
    max: float


def summarize(values: Iterable[float]) -> Summary | None:
    """The distribution of the values; None if there are none."""
    array = np.fromiter(values, np.float64)
    if not array.size:
        return None
    p50, p90, p95, p99 = (float(value) for value in np.percentile(array, [50, 90, 95, 99]))
    return Summary(array.size, float(array.mean()), p50, p90, p95, p99, float(array.min()), float(array.max()))


@dataclass(frozen=True)
class Spread:
    """Repeats of one measurement, where more is better or less is. values: in order of measurement."""

    median: float
    best: float
    worst: float
    values: list[float]


def spread(values: Sequence[float], *, more_is_better: bool = False) -> Spread:
    """Median, best and worst of repeats (at least one)."""
    low, high = min(values), max(values)
    best, worst = (high, low) if more_is_better else (low, high)
    return Spread(float(np.median(values)), best, worst, list(values))
