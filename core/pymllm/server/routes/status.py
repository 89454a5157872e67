"""GET routes: the models, health, readiness, facts, metrics and the page."""

from __future__ import annotations

import platform
import time
from importlib import metadata
from importlib.resources import files
from typing import Any

import msgspec
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import Response

from pymllm import __version__
from pymllm.errors import PymllmError
from pymllm.server.endpoint import Endpoint, error_response, json_response
from pymllm.server.protocol.errors import ApiError
from pymllm.server.state import ServerState

_PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}


def status_routes(state: ServerState) -> dict[str, Endpoint]:
    """Path -> handler of every GET route."""
    created = int(time.time())
    page = files("pymllm.server").joinpath("page.html").read_bytes()

    async def health(request: Request) -> Response:
        return json_response({"status": "ok"})

    async def ready(request: Request) -> Response:
        reason = state.ready
        if reason is None:
            return json_response({"status": "ready"})
        return ApiError(503, reason, code="not_ready").response()

    async def models(request: Request) -> Response:
        return json_response({"object": "list", "data": [_card(state, created)]})

    async def model(request: Request) -> Response:
        try:
            state.check_model(request.path_params["name"])
        except (ApiError, PymllmError) as error:
            return error_response(error)
        return json_response(_card(state, created))

    async def info(request: Request) -> Response:
        return json_response(_facts(state))

    async def metrics(request: Request) -> Response:
        return Response(state.metrics.exposition(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def root(request: Request) -> Response:
        return Response(page, headers=_PAGE_HEADERS, media_type="text/html")

    return {
        "/": root,
        "/health": health,
        "/ready": ready,
        "/v1/models": models,
        "/v1/models/{name:path}": model,
        "/info": info,
        "/metrics": metrics,
    }


def _card(state: ServerState, created: int) -> dict[str, Any]:
    info = state.frontend.client.info
    return {
        "id": state.model_name,
        "object": "model",
        "created": created,
        "owned_by": "pymllm",
        "root": info.model,
        "max_model_len": info.max_context,
    }


def _facts(state: ServerState) -> dict[str, Any]:
    """What is served, by which plugins and why, and how much fits."""
    info = msgspec.to_builtins(state.frontend.client.info)
    plugins = info.pop("choices")
    stats = msgspec.to_builtins(state.frontend.client.stats())
    return {
        "model": state.model_name,
        "ready": state.ready is None,
        "takes": ["text"] if state.frontend.media is None else ["text", "image", "video"],
        "versions": {"pymllm": __version__, "python": platform.python_version(), **_versions()},
        "plugins": plugins,
        "engine": info,
        "limits": {
            "max_queued_requests": state.config.max_queued_requests,
            "max_body_bytes": state.config.max_body_bytes,
        },
        "stats": {**stats, "open": state.open_answers},
    }


def _versions() -> dict[str, str]:
    found = {}
    for name in ("torch", "transformers", "tokenizers"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
