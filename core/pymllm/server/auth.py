"""The API key: every route but the two that load balancers ask needs it."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from pymllm.server.protocol.errors import ApiError

OPEN_PATHS = frozenset({"/health", "/ready"})
"""Answered without a key: they say nothing but yes or no."""


class Auth:
    """Pure ASGI middleware. The key comes as ``Authorization: Bearer KEY``, or as the password of Basic
    authentication, so that a browser can ask for it when it opens the page at ``/``."""

    def __init__(self, app: ASGIApp, *, api_key: str) -> None:
        self._app = app
        self._digest = hashlib.sha256(api_key.encode()).digest()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in OPEN_PATHS or self._allows(Headers(scope=scope)):
            await self._app(scope, receive, send)
            return
        scheme = 'Basic realm="pymllm"' if scope["path"] == "/" else "Bearer"
        error = ApiError(
            401,
            "the API key is missing or wrong; send it as 'Authorization: Bearer KEY'",
            code="invalid_api_key",
            headers={"WWW-Authenticate": scheme},
        )
        await error.response()(scope, receive, send)

    def _allows(self, headers: Headers) -> bool:
        scheme, _, credentials = headers.get("authorization", "").partition(" ")
        given = credentials.strip().encode("latin-1")
        if scheme.lower() == "basic":
            given = _password(given)
        elif scheme.lower() != "bearer":
            return False
        # Digests have one length, so not even the key's length shows in the time this takes.
        return hmac.compare_digest(hashlib.sha256(given).digest(), self._digest)


def _password(credentials: bytes) -> bytes:
    try:
        return base64.b64decode(credentials, validate=True).partition(b":")[2]
    except binascii.Error:
        return b""
