"""Which figures of a result line a picture shows, and over what."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Line = Mapping[str, Any]
Interval = tuple[float, float, float]
"""A value and the ends of the bar through it."""


@dataclass(frozen=True)
class Panel:
    """One diagram. x: field on the horizontal axis, None for one bar a run. value: of a line, in the unit that
    y_label names; None where the line has no such figure."""

    title: str
    y_label: str
    value: Callable[[Line], Interval | None]
    x: str | None = None
    x_label: str = ""


@dataclass(frozen=True)
class Kind:
    """The panels of a benchmark. settings: fields that may tell two lines of one run apart -> how a legend says
    so, with ``{}`` for the value."""

    panels: Sequence[Panel]
    settings: Mapping[str, str]


def _spread(field: str, scale: float = 1.0, within: str | None = None) -> Callable[[Line], Interval | None]:
    """Median, and best and worst of the repeats."""

    def value(line: Line) -> Interval | None:
        found = (line[within] if within else line)[field]
        if found is None:
            return None
        low, high = sorted((found["best"], found["worst"]))
        return scale * found["median"], scale * low, scale * high

    return value


def _inverse(latency: str, tokens: Callable[[Line], float]) -> Callable[[Line], Interval | None]:
    """Tokens over a latency of ``spread``: the quickest repeat is the highest rate."""
    seconds = _spread(latency, within="spread")

    def value(line: Line) -> Interval | None:
        found = seconds(line)
        if found is None:
            return None
        rate, highest, lowest = (tokens(line) / one for one in found)
        return rate, lowest, highest

    return value


def _percentiles(field: str) -> Callable[[Line], Interval | None]:
    """p50, with a bar up to p99; milliseconds."""

    def value(line: Line) -> Interval | None:
        found = line[field]
        return None if found is None else (1e3 * found["p50"], 1e3 * found["p50"], 1e3 * found["p99"])

    return value


def _single(field: str) -> Callable[[Line], Interval | None]:
    return lambda line: (line[field], line[field], line[field])


def _serve(x: str, x_label: str, more: Mapping[str, str]) -> Kind:
    return Kind(
        [
            Panel("server throughput", "output tokens / s", _single("output_tok_s"), x, x_label),
            Panel("time to the first token, p50 to p99", "ms", _percentiles("ttft_s"), x, x_label),
            Panel("time between tokens, p50 to p99", "ms", _percentiles("itl_s"), x, x_label),
        ],
        {"num_requests": "{} requests", "input_len": "in {}", "output_len": "out {}", **more},
    )


_BATCH = ("batch_size", "batch size (requests)")
_PROMPT = ("input_len", "prompt length (tokens)")

_LENGTHS = {"batch_size": "batch {}", "input_len": "{} tokens in", "output_len": "{} out"}

KINDS: Mapping[str, Kind] = {
    "one-batch": Kind(
        [
            Panel("prefill latency", "ms", _spread("prefill_latency", 1e3, within="spread"), *_PROMPT),
            Panel(
                "prefill throughput",
                "prompt tokens / s",
                _inverse("prefill_latency", lambda line: line["batch_size"] * line["input_len"]),
                *_PROMPT,
            ),
            Panel("decode latency", "ms a step", _spread("median_decode_latency", 1e3, within="spread"), *_BATCH),
            Panel(
                "decode throughput",
                "output tokens / s",
                _inverse("median_decode_latency", lambda line: line["batch_size"]),
                *_BATCH,
            ),
        ],
        _LENGTHS,
    ),
    "latency": Kind(
        [
            Panel("time to the first token", "ms", _spread("ttft_s", 1e3), *_PROMPT),
            Panel("time per token after it", "ms", _spread("tpot_s", 1e3), *_BATCH),
            Panel("throughput", "output tokens / s", _spread("output_tok_s"), *_BATCH),
        ],
        {**_LENGTHS, "shared_prefix": "{} shared"},
    ),
    "throughput": Kind(
        [
            Panel("offline throughput", "output tokens / s", _spread("output_tok_s")),
            Panel("offline throughput, prompts too", "tokens / s", _spread("total_tok_s")),
        ],
        {"num_prompts": "{} requests", "input_len": "in {}", "output_len": "out {}"},
    ),
    "serve": _serve("concurrency", "open requests at most", {"request_rate": "{} a second"}),
}
"""Value of the field ``benchmark`` -> what is drawn of its lines."""


def kind_of(name: str, lines: Sequence[Line]) -> Kind:
    """What is drawn of a benchmark's lines; of a server's, over the request rate if none limits the concurrency."""
    if name == "serve" and all(line["concurrency"] is None for line in lines):
        return _serve("request_rate", "requests a second", {})
    return KINDS[name]
