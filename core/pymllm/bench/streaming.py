"""One streamed request against an OpenAI-compatible server, and what its client saw when."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from pymllm.bench.requests import Job

if TYPE_CHECKING:
    import httpx


@dataclass
class Record:
    """One request as its client saw it; a line of ``--per-request``. Times are seconds from the start of the run.

    scheduled: when it was to arrive. arrived: when the client got to it. sent: when it was sent, after waiting
    for a free place under --concurrency. first, last: first and last text. finished: end of the answer.
    chunks: pieces of text; gaps: between one and the next. prompt_tokens, output_tokens, cached_tokens: the
    server's usage, null without it. error: what went wrong; error_kind: the same in a word or two.
    """

    index: int
    scheduled: float
    arrived: float = 0.0
    sent: float = 0.0
    first: float | None = None
    last: float | None = None
    finished: float | None = None
    chunks: int = 0
    gaps: list[float] = field(default_factory=list)
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    finish_reason: str | None = None
    error: str | None = None
    error_kind: str | None = None

    @property
    def ttft(self) -> float | None:
        """Time to the first text, or to the end of an answer that has tokens but no text."""
        moment = self.first if self.first is not None else self.finished
        return None if moment is None else moment - self.sent

    @property
    def tpot(self) -> float | None:
        """Time per output token after the first; None for fewer than two tokens or no usage."""
        if self.first is None or self.finished is None or not self.output_tokens or self.output_tokens < 2:
            return None
        return (self.finished - self.first) / (self.output_tokens - 1)

    @property
    def e2e(self) -> float | None:
        """From sending to the end of the answer."""
        return None if self.finished is None else self.finished - self.sent

    def fail(self, kind: str, message: str) -> None:
        """Note what went wrong; the first cause stays."""
        if self.error is None:
            self.error_kind, self.error = kind, " ".join(message.split())[:300]


async def stream(http: httpx.AsyncClient, job: Job, record: Record, clock: Callable[[], float]) -> None:
    """Send a request and fill its record; whatever goes wrong is noted there. clock: seconds of the run."""
    import httpx

    record.sent = clock()
    try:
        async with http.stream("POST", job.route, content=job.content) as response:
            if response.status_code != 200:
                record.fail(f"HTTP {response.status_code}", error_text(await response.aread()))
                return
            async for line in _lines(response):
                if line.startswith(b"data:") and not _take(record, line[5:].strip(), clock()):
                    break
    except httpx.TimeoutException as error:
        record.fail("timeout", type(error).__name__)
    except httpx.HTTPError as error:
        record.fail("connection", f"{type(error).__name__}: {error}")
    if record.finish_reason is None:
        record.fail("stream", "the stream ended before the answer did")


async def _lines(response: httpx.Response) -> AsyncIterator[bytes]:
    """The lines of a stream of events. Only line feeds end them; httpx's own ``aiter_lines`` also takes characters
    such as U+2028 and U+0085 for line ends, and these may stand inside an event's JSON."""
    rest = b""
    async for chunk in response.aiter_bytes():
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            yield line
    yield rest


def _take(record: Record, data: bytes, now: float) -> bool:
    """Take in an event; False if it was the last one."""
    if data == b"[DONE]":
        return False
    try:
        event = msgspec.json.decode(data, type=dict[str, Any])
    except msgspec.DecodeError:
        record.fail("stream", f"an event that is no JSON object: {data[:80].decode(errors='replace')}")
        return False
    if event.get("error"):
        record.fail("stream", error_text(data))
        return False
    for choice in event.get("choices") or ():
        _take_choice(record, choice, now)
    _take_usage(record, event.get("usage") or {})
    return True


def _take_choice(record: Record, choice: dict[str, Any], now: float) -> None:
    delta = choice.get("delta") or {}
    if choice.get("text") or delta.get("content") or delta.get("reasoning_content") or delta.get("tool_calls"):
        if record.last is None:
            record.first = now
        else:
            record.gaps.append(now - record.last)
        record.last = now
        record.chunks += 1
    if choice.get("finish_reason"):
        record.finish_reason = choice["finish_reason"]
        record.finished = now


def _take_usage(record: Record, usage: dict[str, Any]) -> None:
    record.prompt_tokens = usage.get("prompt_tokens", record.prompt_tokens)
    record.output_tokens = usage.get("completion_tokens", record.output_tokens)
    details = usage.get("prompt_tokens_details") or {}
    record.cached_tokens = details.get("cached_tokens", record.cached_tokens)


def error_text(body: bytes) -> str:
    """The sentence in an OpenAI error object, or the body itself."""
    try:
        error = msgspec.json.decode(body, type=dict[str, Any])["error"]
        return str(error["message"] if isinstance(error, dict) else error)
    except (msgspec.DecodeError, KeyError):
        return body.decode(errors="replace") or "no message"


def run_clock() -> Callable[[], float]:
    """Seconds since now."""
    start = time.perf_counter()
    return lambda: time.perf_counter() - start
