"""Server-sent events: the response that streams, and that notices when nobody listens."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import suppress
from typing import Any, Protocol

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from pymllm.frontend.generation import Delta
from pymllm.server.answers import Answers
from pymllm.server.protocol.errors import as_api_error

log = logging.getLogger(__name__)

DONE = b"data: [DONE]\n\n"


def event(data: Any) -> bytes:
    """One event with JSON data."""
    return b"data: " + msgspec.json.encode(data) + b"\n\n"


class ChunkWriter(Protocol):
    """Makes the chunks of a streamed response, which msgspec can encode."""

    def news(self, prompt: int, delta: Delta) -> Iterable[Any]:
        """What is to be sent for news of an answer to prompt number ``prompt``."""
        ...

    def end(self) -> Iterable[Any]:
        """What is to be sent once all answers have ended."""
        ...


class EventStream(Response):
    """Sends the chunks of answers as events, then ``[DONE]``; a failure becomes a last event with an error
    object. Whatever has come while the last events were sent goes out together. When the response is over,
    for whatever reason and at whatever point, the answers are closed.

    on_error: gets the error kind of a stream that failed midway (its status line said 200).
    """

    media_type = "text/event-stream"

    def __init__(self, answers: Answers, writer: ChunkWriter, *, on_error: Callable[[str], None]) -> None:
        self.status_code = 200
        self.background = None
        self.init_headers({"Cache-Control": "no-cache", "X-Accel-Buffering": "no", "X-Request-Id": answers.id})
        self._answers = answers
        self._writer = writer
        self._on_error = on_error

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        pump = asyncio.ensure_future(self._pump(send))
        watch = asyncio.ensure_future(client_gone(receive))
        try:
            await asyncio.wait((pump, watch), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (pump, watch):
                task.cancel()
            await asyncio.gather(pump, watch, return_exceptions=True)
            self._answers.close()

    async def _pump(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async for data in self._events():
            await send({"type": "http.response.body", "body": data, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _events(self) -> AsyncIterator[bytes]:
        news = self._writer.news
        try:
            async for arrivals in self._answers.batches():
                data = b"".join([event(chunk) for prompt, delta in arrivals for chunk in news(prompt, delta)])
                if data:
                    yield data
            yield b"".join(map(event, self._writer.end())) + DONE
        except Exception as error:
            known = as_api_error(error)
            if known.status == 500:
                log.error("a stream failed", exc_info=error)
            self._on_error(known.kind)
            yield event(known.body())


async def client_gone(receive: Receive) -> None:
    """Returns when the client has gone away. The body must have been read."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def unless_gone(receive: Receive, work: asyncio.Future[Response]) -> Response | None:
    """The result of ``work``; cancels it and returns None when the client goes away first."""
    watch = asyncio.ensure_future(client_gone(receive))
    try:
        await asyncio.wait((work, watch), return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            work.cancel()
            await asyncio.wait((work,))
        return None if work.cancelled() else work.result()
    finally:
        work.cancel()
        watch.cancel()
        with suppress(asyncio.CancelledError, Exception):
            await watch
