"""Records of single streamed requests, against a server whose every byte is known."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest

from pymllm.bench.requests import CHAT, COMPLETIONS, Body, Job, greeting_jobs
from pymllm.bench.results import BenchmarkError
from pymllm.bench.serve import Target, run_load
from pymllm.bench.serve_result import ServeResult, result_of, warnings_of
from pymllm.bench.streaming import Record

Scripted = Callable[[Callable[[dict[str, Any]], tuple[int, list[Any]]]], AbstractContextManager[str]]
BODY = Body("m", 0.0, ignore_eos=True)
USAGE = {"prompt_tokens": 7, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 4}}


def text(piece: str, reason: str | None = None) -> dict[str, Any]:
    return {"choices": [{"index": 0, "text": piece, "finish_reason": reason}]}


def whole(body: dict[str, Any]) -> tuple[int, list[Any]]:
    return 200, [text("a"), text("b"), text("c", "length"), {"choices": [], "usage": USAGE}, "[DONE]"]


def load(url: str, count: int = 1, route: str = COMPLETIONS, **options: Any) -> tuple[list[Record], ServeResult]:
    prompt = {"prompt": [1, 2, 3]} if route == COMPLETIONS else {"messages": [{"role": "user", "content": "hi"}]}
    jobs = [Job(route, BODY.encode(prompt, 3), 3)] * count
    records, seconds, cpu = run_load(Target(url), jobs, [0.0] * count, **options)
    return records, result_of(records, seconds, cpu, {})


def test_a_whole_answer_is_counted_by_the_servers_usage(scripted: Scripted) -> None:
    with scripted(whole) as url:
        (record,), result = load(url)
    assert record.error is None
    assert (record.chunks, len(record.gaps), record.finish_reason) == (3, 2, "length")
    assert (record.prompt_tokens, record.output_tokens, record.cached_tokens) == (7, 3, 4)
    assert record.first is not None
    assert record.finished is not None
    assert 0 <= record.scheduled <= record.arrived <= record.sent <= record.first <= record.finished
    assert record.tpot == (record.finished - record.first) / 2
    assert (result.completed, result.input_tokens, result.output_tokens, result.cached_tokens) == (1, 7, 3, 4)


def test_only_line_feeds_end_an_event(scripted: Scripted) -> None:
    """An answer may hold U+2028 and U+0085, which JSON need not escape."""
    raw = json.dumps(text("a\u2028b\u0085c"), ensure_ascii=False)
    assert "\u2028" in raw
    events = [raw, {**text("", "stop"), "usage": USAGE}, "[DONE]"]
    with scripted(lambda body: (200, events)) as url:
        (record,), _ = load(url)
    assert (record.error, record.chunks, record.output_tokens) == (None, 1, 3)


def test_the_request_asks_for_what_is_measured(scripted: Scripted) -> None:
    bodies: list[dict[str, Any]] = []
    with scripted(lambda body: (bodies.append(body), whole(body))[1]) as url:
        load(url)
    assert bodies[0]["prompt"] == [1, 2, 3]
    assert bodies[0]["max_tokens"] == 3
    assert bodies[0]["stream"] is True
    assert bodies[0]["ignore_eos"] is True
    assert bodies[0]["stream_options"] == {"include_usage": True}


def test_a_role_is_not_a_first_token(scripted: Scripted) -> None:
    role = {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}]}
    word = {"choices": [{"index": 0, "delta": {"content": "hi"}, "finish_reason": None}]}
    last = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
    with scripted(lambda body: (200, [role, word, last, "[DONE]"])) as url:
        (record,), result = load(url, route=CHAT)
    assert (record.chunks, record.gaps, record.finish_reason) == (1, [], "stop")
    assert result.output_tokens == 1
    assert any("no usage" in line for line in warnings_of(result, [record], paced=False, unshared=False))


def test_an_answer_of_tokens_without_text_still_has_times(scripted: Scripted) -> None:
    with scripted(lambda body: (200, [text("", "length"), {"choices": [], "usage": USAGE}, "[DONE]"])) as url:
        (record,), _ = load(url)
    assert record.first is None
    assert record.ttft == record.e2e


@pytest.mark.parametrize(
    ("answer", "kind", "message"),
    [
        ((429, [{"error": {"message": "too many"}}]), "HTTP 429", "too many"),
        ((500, ["oops"]), "HTTP 500", "oops"),
        ((200, [text("a")]), "stream", "ended before"),
        ((200, [text("a"), {"error": {"message": "engine died"}}]), "stream", "engine died"),
        ((200, ["{no json"]), "stream", "not understood"),
    ],
)
def test_failures_are_counted_by_kind(scripted: Scripted, answer: Any, kind: str, message: str) -> None:
    answers = iter([answer, whole({}), whole({})])
    with scripted(lambda body: next(answers)) as url:
        records, result = load(url, 3, concurrency=1)
    assert (result.completed, result.failed, dict(result.errors)) == (2, 1, {kind: 1})
    assert result.output_tokens == 6
    assert message in str(records[0].error)
    assert result.ttft_s is not None
    assert result.ttft_s.count == 2


def test_a_server_that_is_not_there_is_an_error_of_every_request(scripted: Scripted) -> None:
    with scripted(whole) as url:
        pass
    _, result = load(url, 2)
    assert dict(result.errors) == {"connection": 2}
    assert result.e2e_s is None
    with pytest.raises(BenchmarkError, match="warm-up"):
        load(url, warm_up=greeting_jobs(BODY, COMPLETIONS, 1))


def test_concurrency_holds_requests_back(scripted: Scripted) -> None:
    with scripted(whole) as url:
        records, result = load(url, 6, concurrency=2)
    assert result.max_in_flight == 2
    sent = sorted(record.sent for record in records)
    finished = sorted(record.finished or math.inf for record in records)
    assert all(later >= earlier for later, earlier in zip(sent[2:], finished))


def test_goodput_counts_answers_within_every_objective() -> None:
    def record(first: float, finished: float) -> Record:
        times = {"first": first, "last": finished, "finished": finished, "finish_reason": "length"}
        return Record(0, 0.0, output_tokens=11, **times)  # type: ignore[arg-type]

    records = [record(0.1, 1.1), record(0.3, 1.3), record(0.1, 3.1)]  # ttft 0.1, 0.3, 0.1; tpot 0.1, 0.1, 0.3
    assert result_of(records, 2.0, 0.5, {"ttft": 0.2, "tpot": 0.2}).goodput_requests_s == 0.5
    assert result_of(records, 2.0, 0.5, {"e2e": 1.5}).goodput_requests_s == 1.0
    assert result_of(records, 2.0, 0.5, {}).goodput_requests_s is None


def test_a_late_client_is_warned_about() -> None:
    times = {"first": 0.2, "last": 0.2, "finished": 0.2, "finish_reason": "stop"}
    records = [Record(0, 0.0, arrived=0.1, sent=0.1, output_tokens=1, chunks=1, **times)]  # type: ignore[arg-type]
    result = result_of(records, 1.0, 0.5, {})
    assert any("100.0 ms" in line for line in warnings_of(result, records, paced=True, unshared=True))
    assert warnings_of(result, records, paced=False, unshared=True) == []
