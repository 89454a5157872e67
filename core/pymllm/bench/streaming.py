"""One streamed request against an OpenAI-compatible server, and what its client saw when."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from pymllm.bench.http_body import HttpError
from pymllm.bench.http_client import HttpClient
from pymllm.bench.requests import Job

ERROR_BYTES = 64 * 1024
"""Of a response with another status than 200, so much is kept."""


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


async def stream(http: HttpClient, job: Job, record: Record, clock: Callable[[], float]) -> None:
    """Send a request and fill its record; whatever goes wrong is noted there. clock: seconds of the run."""
    reader = _Reader(record, clock)
    record.sent = clock()
    try:
        await http.post(f"v1/{job.route}", job.content, reader.take)
    except asyncio.TimeoutError:
        record.fail("timeout", f"nothing came for {http.timeout:g} s")
    except (OSError, HttpError) as error:
        record.fail("connection", f"{type(error).__name__}: {error}")
    reader.end()


class _Delta(msgspec.Struct):
    content: Any = None
    reasoning_content: Any = None
    tool_calls: Any = None


class _Choice(msgspec.Struct):
    text: Any = None
    delta: _Delta | None = None
    finish_reason: str | None = None


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None


class _Event(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: Any = None


_decoder = msgspec.json.Decoder(_Event)


class _Reader:
    """Takes in the body of one response as it comes. Only line feeds end the lines of its events: others, such as
    U+2028, may stand inside JSON."""

    def __init__(self, record: Record, clock: Callable[[], float]) -> None:
        self._record = record
        self._clock = clock
        self._rest = b""
        self._refused = 0
        self._over = False

    def take(self, status: int, data: bytes) -> None:
        """The next bytes of a response with that status."""
        if status != 200:
            self._refused = status
            self._rest = (self._rest + data)[:ERROR_BYTES]
            return
        now = self._clock()
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if line.startswith(b"data:") and not self._over:
                self._event(line[5:].strip(), now)

    def end(self) -> None:
        """The response is over, or has failed."""
        if self._refused:
            self._record.fail(f"HTTP {self._refused}", error_text(self._rest))
        if self._rest.startswith(b"data:") and not self._over:
            self._event(self._rest[5:].strip(), self._clock())
        if self._record.finish_reason is None:
            self._record.fail("stream", "the stream ended before the answer did")

    def _event(self, data: bytes, now: float) -> None:
        record = self._record
        if data == b"[DONE]":
            self._over = True
            return
        try:
            event = _decoder.decode(data)
        except msgspec.DecodeError:
            self._fail(f"an event that is not understood: {data[:80].decode(errors='replace')}")
            return
        if event.error:
            self._fail(error_text(data))
            return
        for choice in event.choices or ():
            _take_choice(record, choice, now)
        if event.usage is not None:
            _take_usage(record, event.usage)

    def _fail(self, message: str) -> None:
        self._over = True
        self._record.fail("stream", message)


def _take_choice(record: Record, choice: _Choice, now: float) -> None:
    delta = choice.delta
    if choice.text or (delta and (delta.content or delta.reasoning_content or delta.tool_calls)):
        if record.last is None:
            record.first = now
        else:
            record.gaps.append(now - record.last)
        record.last = now
        record.chunks += 1
    if choice.finish_reason:
        record.finish_reason = choice.finish_reason
        record.finished = now


def _take_usage(record: Record, usage: _Usage) -> None:
    if usage.prompt_tokens is not None:
        record.prompt_tokens = usage.prompt_tokens
    if usage.completion_tokens is not None:
        record.output_tokens = usage.completion_tokens
    if usage.prompt_tokens_details is not None and usage.prompt_tokens_details.cached_tokens is not None:
        record.cached_tokens = usage.prompt_tokens_details.cached_tokens


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
