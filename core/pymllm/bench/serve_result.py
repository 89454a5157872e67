"""The summary of a run against a server, from the records of its requests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pymllm.bench.stats import Summary, summarize
from pymllm.bench.streaming import Record

LAG_SHARE = 0.1
BUSY_SHARE = 0.8
LEAST_LAG_S = 0.005
"""The client is too slow if it uses more than BUSY_SHARE of a processor, or if its p99 lag is above LEAST_LAG_S and
above LAG_SHARE of the median TTFT."""


@dataclass(frozen=True)
class ServeResult:
    """What was measured; fields are documented in :mod:`pymllm.bench.serve`."""

    duration_s: float
    completed: int
    failed: int
    errors: Mapping[str, int]
    input_tokens: int
    output_tokens: int
    cached_tokens: int | None
    requests_s: float
    output_tok_s: float
    total_tok_s: float
    goodput_requests_s: float | None
    max_in_flight: int
    ttft_s: Summary | None
    itl_s: Summary | None
    tpot_s: Summary | None
    e2e_s: Summary | None
    client_lag_s: Summary | None
    concurrency_wait_s: Summary | None
    chunks: int
    client_cpu_share: float


def result_of(
    records: Sequence[Record], seconds: float, cpu_seconds: float, objectives: Mapping[str, float]
) -> ServeResult:
    """seconds, cpu_seconds: of the run, as in :class:`pymllm.bench.serve.Load`.
    objectives: "ttft", "tpot", "e2e" -> most seconds a good request may take; empty: no goodput."""
    done = [record for record in records if record.error is None]
    inputs = sum(record.prompt_tokens or 0 for record in done)
    outputs = sum(_tokens(record) for record in done)
    cached = [record.cached_tokens for record in done if record.cached_tokens is not None]
    good = sum(_is_good(record, objectives) for record in done)
    return ServeResult(
        duration_s=seconds,
        completed=len(done),
        failed=len(records) - len(done),
        errors=dict(Counter(record.error_kind or "unknown" for record in records if record.error is not None)),
        input_tokens=inputs,
        output_tokens=outputs,
        cached_tokens=sum(cached) if cached else None,
        requests_s=len(done) / seconds,
        output_tok_s=outputs / seconds,
        total_tok_s=(inputs + outputs) / seconds,
        goodput_requests_s=good / seconds if objectives else None,
        max_in_flight=_max_in_flight(records),
        ttft_s=_summary(record.ttft for record in done),
        itl_s=_summary(gap for record in done for gap in record.gaps),
        tpot_s=_summary(record.tpot for record in done),
        e2e_s=_summary(record.e2e for record in done),
        client_lag_s=_summary(record.arrived - record.scheduled for record in records),
        concurrency_wait_s=_summary(record.sent - record.arrived for record in records),
        chunks=sum(record.chunks for record in done),
        client_cpu_share=cpu_seconds / seconds,
    )


def warnings_of(result: ServeResult, records: Sequence[Record], *, paced: bool, unshared: bool) -> list[str]:
    """What makes the figures doubtful, a sentence each. paced: requests had a rate. unshared: the prompts have
    nothing in common, so that none of them should have been found in a cache."""
    found = []
    lag, ttft = result.client_lag_s, result.ttft_s
    if paced and lag and lag.p99 > LEAST_LAG_S and (ttft is None or lag.p99 > LAG_SHARE * ttft.p50):
        found.append(
            f"the client was late: p99 of the time between arrival and sending is {1e3 * lag.p99:.1f} ms; "
            "use a lower rate or another machine for the client"
        )
    if result.client_cpu_share > BUSY_SHARE:
        found.append(
            f"the client itself used {100 * result.client_cpu_share:.0f} % of a processor: it may be what limits these "
            "figures; take a machine that is less busy, or share the load among several clients"
        )
    if unshared and result.cached_tokens:
        found.append(
            f"{result.cached_tokens} of {result.input_tokens} prompt tokens came from the server's prefix cache, "
            "left there by an earlier run: change --seed or restart the server"
        )
    if any(record.output_tokens is None for record in records if record.error is None):
        found.append("the server sends no usage: pieces of text were counted as tokens, and prompts as nothing")
    elif result.chunks < 0.9 * result.output_tokens:
        found.append(
            f"{result.output_tokens} tokens came in {result.chunks} pieces of text: inter-token latencies are "
            "those of pieces"
        )
    return found


def _tokens(record: Record) -> int:
    return record.chunks if record.output_tokens is None else record.output_tokens


def _summary(values: Iterable[float | None]) -> Summary | None:
    return summarize(value for value in values if value is not None)


def _is_good(record: Record, objectives: Mapping[str, float]) -> bool:
    values: dict[str, float | None] = {"ttft": record.ttft, "tpot": record.tpot, "e2e": record.e2e}
    return all((value := values[name]) is None or value <= limit for name, limit in objectives.items())


def _max_in_flight(records: Sequence[Record]) -> int:
    """Most answers that were open at a time."""
    moves = [(record.sent, 1) for record in records if record.finished is not None]
    moves += [(record.finished, -1) for record in records if record.finished is not None]
    most = now = 0
    for _, change in sorted(moves):
        now += change
        most = max(most, now)
    return most
