"""How much a client may send, and the count of what went wrong."""

from __future__ import annotations

from collections.abc import Callable

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pymllm.server.protocol.errors import ApiError, error_kind


class BodyLimit:
    """Pure ASGI middleware: 413 for a body above ``max_bytes``, declared or streamed in chunks."""

    def __init__(self, app: ASGIApp, *, max_bytes: int) -> None:
        self._app = app
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        declared = Headers(scope=scope).get("content-length", "")
        if declared.isdigit() and int(declared[:20]) > self._max_bytes:
            await self._error().response()(scope, receive, send)
            return
        received = 0

        async def counted() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > self._max_bytes:
                raise self._error()
            return message

        await self._app(scope, counted, send)

    def _error(self) -> ApiError:
        # The connection stays open: uvicorn then discards the rest of the body, and a client that sends all
        # of it before it reads gets this answer instead of a reset.
        message = f"the request body is larger than {self._max_bytes} bytes (server.max_body_bytes)"
        return ApiError(413, message, code="body_too_large")


class CountErrors:
    """Pure ASGI middleware: tells ``count`` the kind of every error response."""

    def __init__(self, app: ASGIApp, *, count: Callable[[str], None]) -> None:
        self._app = app
        self._count = count

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def watched(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] >= 400 and scope["path"] != "/ready":
                self._count(error_kind(message["status"]))
            await send(message)

        await self._app(scope, receive, watched if scope["type"] == "http" else send)
