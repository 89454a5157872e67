"""A lean HTTP/1.1 client for streams: what the client of a fast server can afford for every token.

General clients spend several times as long on a piece of a stream as a server on a GPU does. Here a piece is one
callback.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Mapping
from urllib.parse import urlsplit

from pymllm.bench.http_body import Body, HttpError

CONNECT_SECONDS = 30.0

MAX_HEAD = 64 * 1024
"""Bytes of a status line and its headers."""

OnBody = Callable[[int, bytes], None]
"""Gets the status and the next bytes of the body, on the event loop."""


class HttpClient:
    """Posts to one server, over as many connections as there are requests at a time; idle ones are used again."""

    def __init__(self, root: str, headers: Mapping[str, str], timeout: float) -> None:
        """root: a URL that paths are appended to. timeout: seconds without a byte."""
        parts = urlsplit(root)
        self._host, self._tls = parts.hostname or "", parts.scheme == "https"
        self._port = parts.port or (443 if self._tls else 80)
        self._path = parts.path.rstrip("/")
        shown = {"Host": parts.netloc.rpartition("@")[2], "User-Agent": "pymllm", "Accept": "*/*", **headers}
        self._headers = "".join(f"{name}: {value}\r\n" for name, value in shown.items())
        self.timeout = timeout
        self._context = ssl.create_default_context() if self._tls else None
        self._idle: list[_Connection] = []

    async def post(self, path: str, content: bytes, on_body: OnBody) -> None:
        """Returns when the response is over. Raises HttpError, OSError, or asyncio.TimeoutError."""
        head = f"POST {self._path}/{path} HTTP/1.1\r\n{self._headers}Content-Length: {len(content)}\r\n\r\n"
        message = head.encode("latin-1") + content
        while self._idle:
            connection = self._idle.pop()
            if connection.usable and await self._exchange(connection, message, on_body):
                return
        fresh = self._connect()
        await self._exchange(await asyncio.wait_for(fresh, CONNECT_SECONDS), message, on_body)

    async def _exchange(self, connection: _Connection, message: bytes, on_body: OnBody) -> bool:
        """False if the server had closed an idle connection before it got this."""
        try:
            await connection.exchange(message, on_body, self.timeout)
        except asyncio.TimeoutError:  # which newer Pythons count among the OSErrors
            raise
        except (HttpError, OSError):
            if connection.exchanges > 1 and not connection.answered:
                return False
            raise
        finally:
            if connection.usable:
                self._idle.append(connection)
            else:
                connection.close()
        return True

    async def _connect(self) -> _Connection:
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(
            lambda: _Connection(loop), self._host, self._port, ssl=self._context
        )
        return connection

    def close(self) -> None:
        """Close idle connections."""
        for connection in self._idle:
            connection.close()
        self._idle.clear()


class _Connection(asyncio.Protocol):
    """One exchange at a time. exchanges: begun so far. answered: the current one has brought a byte."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self.exchanges = 0
        self.answered = False
        self._keep = False
        self._begin(lambda status, data: None)

    def _begin(self, on_body: OnBody) -> None:
        self._on_body = on_body
        self._head = b""
        self._body: Body | None = None
        self._status = 0
        self._over: asyncio.Future[None] | None = None

    @property
    def usable(self) -> bool:
        """Whether another exchange can follow."""
        open_ = self._transport is not None and not self._transport.is_closing()
        return open_ and (self.exchanges == 0 or (self._keep and self._body is not None and self._body.over))

    async def exchange(self, message: bytes, on_body: OnBody, timeout: float) -> None:
        assert self._transport is not None
        self._begin(on_body)
        self.exchanges += 1
        self.answered = self._keep = False
        over = self._over = self._loop.create_future()
        self._heard = self._loop.time()
        self._watch = self._loop.call_later(timeout, self._check, timeout)
        self._transport.write(message)
        try:
            await over
        finally:
            self._over = None
            self._watch.cancel()

    def _check(self, timeout: float) -> None:
        """Fail if nothing was heard for so long; else look again when that can be. (A timer for each piece of the
        stream would cost more than the rest.)"""
        left = self._heard + timeout - self._loop.time()
        if left > 0:
            self._watch = self._loop.call_later(left, self._check, timeout)
        else:
            self._fail(asyncio.TimeoutError())

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def _fail(self, error: Exception) -> None:
        if self._over is not None and not self._over.done():
            self._over.set_exception(error)
        self.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        if self._body is not None and self._body.ends_with_connection and exc is None:
            self._end()
        self._fail(exc or HttpError("the server closed the connection"))

    def data_received(self, data: bytes) -> None:
        self._heard = self._loop.time()
        self.answered = True
        try:
            body = self._body or self._read_head(data)
            if body is None:
                return
            if body is not self._body:
                self._body, data = body, self._head
            part = body.feed(data)
            if part:
                self._on_body(self._status, part)
            if body.over:
                self._end()
        except HttpError as error:
            self._fail(error)

    def _read_head(self, data: bytes) -> Body | None:
        """The body, once its head is complete; what came of it already is then in ``_head``."""
        self._head += data
        head, end, rest = self._head.partition(b"\r\n\r\n")
        if not end:
            if len(self._head) > MAX_HEAD:
                raise HttpError("the headers have no end")
            return None
        first, *lines = head.split(b"\r\n")
        words = first.split(None, 2)
        if len(words) < 2 or not words[0].startswith(b"HTTP/1.") or not words[1].isdigit():
            raise HttpError(f"{first!r:.60} where a status line should be")
        self._status = int(words[1])
        pairs = (line.partition(b":") for line in lines)
        headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
        self._keep = words[0] == b"HTTP/1.1" and headers.get(b"connection", b"").lower() != b"close"
        self._head = rest
        return Body(headers)

    def _end(self) -> None:
        if self._over is not None and not self._over.done():
            self._over.set_result(None)
