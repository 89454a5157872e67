"""What all POST routes do around their handler: read, decode, validate, watch the client, answer errors."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from pymllm.errors import RequestError
from pymllm.server.json_body import INLINE_BYTES, decode_json, read_body
from pymllm.server.protocol.base import BodyT, parse, renamed
from pymllm.server.protocol.errors import as_api_error
from pymllm.server.sse import unless_gone
from pymllm.server.state import ServerState

log = logging.getLogger(__name__)

Endpoint = Callable[[Request], Awaitable[Response]]

CLIENT_CLOSED_REQUEST = 499
"""nginx's status for a client that went away; nobody receives it."""


def json_response(data: Any, headers: dict[str, str] | None = None) -> Response:
    """A JSON answer. ``data``: what msgspec encodes (NaN becomes null)."""
    return Response(msgspec.json.encode(data), headers=headers, media_type="application/json")


def post(
    state: ServerState, kind: type[BodyT], handler: Callable[[ServerState, BodyT], Awaitable[Response]]
) -> Endpoint:
    """A route that takes a JSON body of type ``kind``. The handler is cancelled when the client goes away,
    and may raise anything."""

    async def endpoint(request: Request) -> Response:
        try:
            raw = await read_body(request)
            work = asyncio.ensure_future(_answer(state, kind, handler, raw))
            response = await unless_gone(request.receive, work)
        except ClientDisconnect:
            response = None
        except Exception as error:
            return error_response(error)
        return response or Response(status_code=CLIENT_CLOSED_REQUEST)

    return endpoint


async def _answer(
    state: ServerState, kind: type[BodyT], handler: Callable[[ServerState, BodyT], Awaitable[Response]], raw: bytes
) -> Response:
    if len(raw) <= INLINE_BYTES:
        body = parse(kind, decode_json(raw))
    else:
        body = await state.in_thread(lambda: parse(kind, decode_json(raw)))
    try:
        return await handler(state, body)
    except RequestError as error:
        raise renamed(error, body.renames()) from error


def error_response(error: Exception) -> Response:
    """The response that tells a client about an exception; unexpected ones are logged."""
    known = as_api_error(error)
    if known.status == 500:
        log.error("a request failed", exc_info=error)
    return known.response()
