"""The error object that every route answers with, in OpenAI's form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from starlette.exceptions import HTTPException
from starlette.responses import Response

from pymllm.errors import ConflictError, EngineDeadError, QueueFullError, RequestError

RETRY_SECONDS = 1
"""Value of Retry-After on 429 and 503: a queue of short requests moves within about a second."""

_KINDS = {
    401: "authentication_error",
    404: "not_found_error",
    429: "rate_limit_error",
    500: "internal_server_error",
    503: "service_unavailable_error",
}


class ApiError(Exception):
    """An answer other than 200.

    status: HTTP status. param: the offending request field. code: OpenAI's short code, if there is one.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.headers = dict(headers or {})

    @property
    def kind(self) -> str:
        """OpenAI's ``type``, which also labels the metric ``pymllm_errors_total``."""
        return error_kind(self.status)

    def body(self) -> dict[str, Any]:
        """``{"error": {...}}``"""
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}

    def response(self) -> Response:
        """The error as a JSON response."""
        return Response(msgspec.json.encode(self.body()), self.status, self.headers, "application/json")


def error_kind(status: int) -> str:
    """OpenAI's error type for an HTTP status."""
    return _KINDS.get(status, "invalid_request_error" if status < 500 else "internal_server_error")


def as_api_error(error: BaseException) -> ApiError:
    """What a client is told about an exception. Unexpected ones are not described: they may hold
    another request's data; whoever calls this logs them."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, RequestError):
        return ApiError(400, str(error), param=error.field)
    if isinstance(error, ConflictError):
        return ApiError(409, str(error), code="conflict")
    retry = {"Retry-After": str(RETRY_SECONDS)}
    if isinstance(error, QueueFullError):
        return ApiError(429, str(error), code="queue_full", headers=retry)
    if isinstance(error, EngineDeadError):
        return ApiError(503, str(error), code="engine_dead", headers=retry)
    if isinstance(error, HTTPException):
        return ApiError(error.status_code, str(error.detail), headers=error.headers)
    return ApiError(500, "the server failed to answer this request; its log says why")
