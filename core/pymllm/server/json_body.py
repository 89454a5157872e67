"""Request bodies: read with patience, decoded without mercy. What is no plain JSON is refused with a 4xx."""

from __future__ import annotations

import asyncio
import json
import math
import re
from typing import Any

from starlette.requests import ClientDisconnect, Request

from pymllm.errors import RequestError
from pymllm.server.protocol.errors import ApiError

READ_SECONDS = 30.0
"""Longest pause between two pieces of a body."""

MAX_DEPTH = 64
"""Deepest nesting of arrays and objects."""

INLINE_BYTES = 64 * 1024
"""Larger bodies are decoded in a thread."""

_LONG_NUMBER = re.compile(r"\d{19}")
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


async def read_body(request: Request) -> bytes:
    """The whole body. Raises ApiError 415 unless it is declared as JSON (a form that a foreign web page
    posts never is), 408 when it stops coming, and starlette's ClientDisconnect."""
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type != "application/json":
        raise ApiError(415, f"the Content-Type must be application/json, not '{content_type:.100}'")
    chunks: list[bytes] = []
    while True:
        try:
            message = await asyncio.wait_for(request.receive(), READ_SECONDS)
        except asyncio.TimeoutError:
            raise ApiError(408, "the request body stopped coming", headers={"Connection": "close"}) from None
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        chunks.append(message.get("body", b""))
        if not message.get("more_body"):
            return b"".join(chunks)


def decode_json(body: bytes) -> Any:
    """The JSON value of a body. Raises RequestError for what is no UTF-8, no JSON, nested too deeply, or
    holds NaN, infinities, integers beyond 64 bits or half a surrogate pair."""
    if not body:
        raise RequestError("the request body is empty; send a JSON object")
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        raise RequestError(f"the request body is not valid UTF-8 at byte {error.start}") from None
    parse_int = _bounded_int if _LONG_NUMBER.search(text) else None
    try:
        value = json.loads(text, parse_constant=_refuse_constant, parse_float=_finite_float, parse_int=parse_int)
    except RequestError:
        raise
    except ValueError as error:
        raise RequestError(f"the request body is not valid JSON: {error}") from None
    except RecursionError:
        raise RequestError("the request body is nested too deeply") from None
    if text.count("[") + text.count("{") > MAX_DEPTH:
        _check_depth(value)
    if _SURROGATE.search(text):
        _check_unicode(value)
    return value


def _refuse_constant(name: str) -> None:
    raise RequestError(f"the request body is not valid JSON: {name} is no JSON number")


def _finite_float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise RequestError(f"the number {text:.40} is too large")
    return value


def _bounded_int(text: str) -> int:
    value = int(text) if len(text) <= 20 else None
    if value is None or not -(2**63) <= value < 2**64:
        raise RequestError(f"the integer {text:.40} does not fit into 64 bits")
    return value


def _check_depth(value: Any) -> None:
    level = [value] if isinstance(value, (dict, list)) else []
    for _ in range(MAX_DEPTH):
        if not level:
            return
        children = (one.values() if isinstance(one, dict) else one for one in level)
        level = [child for group in children for child in group if isinstance(child, (dict, list))]
    raise RequestError("the request body is nested too deeply")


def _check_unicode(value: Any) -> None:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise RequestError("the request body spells half a surrogate pair, which is no character") from None
