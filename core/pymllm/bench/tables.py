"""Results as rows of a table for a person; times in milliseconds."""

from __future__ import annotations

from collections.abc import Sequence

from pymllm.bench.latency import LatencyResult
from pymllm.bench.one_batch import OneBatchResult
from pymllm.bench.serve_result import ServeResult
from pymllm.bench.stats import Spread, Summary
from pymllm.bench.throughput import ThroughputResult

Rows = list[tuple[str, ...]]

THROUGHPUT_TITLE = ("", "MEDIAN", "BEST", "WORST")
LATENCY_TITLE = ("BATCH", "IN", "OUT", "TTFT ms", "(best-worst)", "PER TOKEN ms", "(best-worst)", "TOTAL ms", "TOK/S")
ONE_BATCH_TITLE = (
    "BATCH", "IN", "OUT", "PREFILL ms", "(best-worst)", "TOK/S", "COMPUTE", "DECODE ms", "(best-worst)", "TOK/S",
    "BANDWIDTH", "TOTAL ms",
)  # fmt: skip
PICTURES_TITLE = ("BATCH", "IN", "OF PICTURES", "VISION TOWER ms", "AN IMAGE TOKEN us", "WHOLE PREFILL ms")
SWEEP_TITLE = ("OPEN AT MOST", "REQ/S", "OUTPUT TOK/S", "TTFT ms p50", "p99", "ITL ms p50", "p99", "FAILED")
SERVE_TITLE = ("ms", "MEAN", "P50", "P90", "P95", "P99", "MAX")


def throughput_rows(result: ThroughputResult) -> Rows:
    """One row for each rate."""
    named = {
        "output tok/s": result.output_tok_s,
        "total tok/s": result.total_tok_s,
        "requests/s": result.requests_s,
        "seconds": result.elapsed_s,
    }
    return [
        (name, *(f"{value:,.2f}" for value in (rate.median, rate.best, rate.worst))) for name, rate in named.items()
    ]


def latency_row(result: LatencyResult) -> tuple[str, ...]:
    """One setting."""
    sizes = (result.batch_size, result.input_len, result.output_len)
    return (
        *map(str, sizes),
        *_milliseconds(result.ttft_s),
        *_milliseconds(result.tpot_s),
        f"{1e3 * result.e2e_s.median:.1f}",
        f"{result.output_tok_s.median:,.1f}",
    )


def one_batch_row(result: OneBatchResult) -> tuple[str, ...]:
    """One setting. The shares are of the device's measured ceilings."""
    decode_rate = result.median_decode_throughput
    return (
        *map(str, (result.batch_size, result.input_len, result.output_len)),
        *_milliseconds(result.spread["prefill_latency"]),
        f"{result.prefill_throughput:,.1f}",
        _percent(result.compute_share),
        *_milliseconds(result.spread["median_decode_latency"]),
        "-" if decode_rate is None else f"{decode_rate:,.1f}",
        _percent(result.bandwidth_share),
        f"{1e3 * result.total_latency:.1f}",
    )


def pictures_row(result: OneBatchResult) -> tuple[str, ...]:
    """One setting with pictures."""
    assert result.image_tokens is not None
    assert result.vit_prefill_ms is not None
    each = 1e3 * result.vit_prefill_ms / (result.batch_size * result.image_tokens)
    return (
        *map(str, (result.batch_size, result.input_len, result.image_tokens)),
        f"{result.vit_prefill_ms:,.2f}",
        f"{each:,.2f}",
        f"{result.multimodal_prefill_ms:,.2f}",
    )


def sweep_row(concurrency: int | None, result: ServeResult) -> tuple[str, ...]:
    """One run of several against a server."""
    shown = [(summary.p50, summary.p99) if summary else None for summary in (result.ttft_s, result.itl_s)]
    return (
        "no limit" if concurrency is None else str(concurrency),
        f"{result.requests_s:,.3f}",
        f"{result.output_tok_s:,.1f}",
        *(f"{1e3 * value:,.2f}" if value is not None else "-" for pair in shown for value in pair or (None, None)),
        str(result.failed),
    )


def serve_totals(result: ServeResult) -> Rows:
    """Counts and rates, two columns."""
    cached = "" if result.cached_tokens is None else f", {result.cached_tokens:,} of them from the server's cache"
    rows: Rows = [
        ("requests", f"{result.completed:,} answered, {result.failed:,} failed, in {result.duration_s:.2f} s"),
        ("in flight", f"{result.max_in_flight:,} at most"),
        ("requests/s", f"{result.requests_s:,.3f}"),
        ("output tok/s", f"{result.output_tok_s:,.1f}"),
        ("total tok/s", f"{result.total_tok_s:,.1f}"),
        ("prompt tokens", f"{result.input_tokens:,}{cached}"),
        ("output tokens", f"{result.output_tokens:,}"),
    ]
    if result.goodput_requests_s is not None:
        rows.insert(3, ("goodput", f"{result.goodput_requests_s:,.3f} requests/s within the objectives"))
    return rows


def serve_rows(result: ServeResult) -> Rows:
    """Distributions, in milliseconds."""
    named = {
        "first token": result.ttft_s,
        "between tokens": result.itl_s,
        "per output token": result.tpot_s,
        "whole answer": result.e2e_s,
        "client lag": result.client_lag_s,
    }
    if result.concurrency_wait_s is not None and result.concurrency_wait_s.max > 1e-3:
        named["held back by --concurrency"] = result.concurrency_wait_s
    return [(name, *_distribution(summary)) for name, summary in named.items()]


def _distribution(summary: Summary | None) -> Sequence[str]:
    if summary is None:
        return ("-",) * (len(SERVE_TITLE) - 1)
    values = (summary.mean, summary.p50, summary.p90, summary.p95, summary.p99, summary.max)
    return [f"{1e3 * value:,.2f}" for value in values]


def _milliseconds(value: Spread | None) -> tuple[str, str]:
    if value is None:
        return "-", "-"
    return f"{1e3 * value.median:.2f}", f"({1e3 * value.best:.2f}-{1e3 * value.worst:.2f})"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.0f}%"
