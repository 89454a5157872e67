"""Server-sent events: the response that streams, and that notices when nobody listens."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from pymllm.server.protocol.errors import as_api_error

log = logging.getLogger(__name__)

DONE = b"data: [DONE]\n\n"


def event(data: Any) -> bytes:
    """One event with JSON data."""
    return b"data: " + msgspec.json.encode(data) + b"\n\n"


class EventStream(Response):
    """Sends what ``chunks`` yields as events, then ``[DONE]``; an exception becomes a last event with an
    error object. When the client goes away, at whatever point, the iterator is cancelled.

    on_end: called exactly once when the response is over, for whatever reason.
    on_error: gets the error kind of a stream that failed midway (its status line said 200).
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        chunks: AsyncIterator[Any],
        *,
        id: str,
        on_end: Callable[[], None],
        on_error: Callable[[str], None],
    ) -> None:
        self.status_code = 200
        self.background = None
        self.init_headers({"Cache-Control": "no-cache", "X-Accel-Buffering": "no", "X-Request-Id": id})
        self._chunks = chunks
        self._on_end = on_end
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
            self._on_end()

    async def _pump(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async for data in self._events():
            await send({"type": "http.response.body", "body": data, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _events(self) -> AsyncIterator[bytes]:
        try:
            async for chunk in self._chunks:
                yield event(chunk)
        except Exception as error:
            known = as_api_error(error)
            if known.status == 500:
                log.error("a stream failed", exc_info=error)
            self._on_error(known.kind)
            yield event(known.body())
            return
        yield DONE


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
