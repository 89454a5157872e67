"""The ASGI application: routes, and the layers around them."""

from __future__ import annotations

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from pymllm import __version__
from pymllm.config import Config
from pymllm.frontend.frontend import Frontend
from pymllm.server.auth import Auth
from pymllm.server.endpoint import Endpoint, error_response, post
from pymllm.server.limits import BodyLimit, CountErrors
from pymllm.server.protocol.chat import ChatRequest
from pymllm.server.protocol.completions import CompletionRequest
from pymllm.server.protocol.errors import ApiError
from pymllm.server.protocol.native import AbortRequest, GenerateRequest
from pymllm.server.protocol.profile import StartProfileRequest, StopProfileRequest
from pymllm.server.protocol.tokenize import DetokenizeRequest, TokenizeRequest
from pymllm.server.routes.chat import chat
from pymllm.server.routes.completions import complete
from pymllm.server.routes.native import abort, generate
from pymllm.server.routes.profile import start_profile, stop_profile
from pymllm.server.routes.status import status_routes
from pymllm.server.routes.tokenize import detokenize, tokenize
from pymllm.server.state import ServerState


def create_app(frontend: Frontend, config: Config) -> FastAPI:
    """The server as an ASGI application, around a started engine. It does not own the engine.

    ``app.state.server`` is its :class:`ServerState`. Answers are made on the loop that runs the app.
    """
    state = ServerState(frontend, config.server)
    app = FastAPI(title="pymllm", version=__version__, openapi_url=None, docs_url=None, redoc_url=None)
    app.router.redirect_slashes = False
    app.state.server = state
    for path, endpoint in _post_routes(state).items():
        app.add_api_route(path, endpoint, methods=["POST"], response_model=None)
    for path, endpoint in status_routes(state).items():
        app.add_api_route(path, endpoint, methods=["GET", "HEAD"], response_model=None)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(Exception, _unexpected)
    # Added last is outermost: errors of the inner two layers are counted.
    app.add_middleware(BodyLimit, max_bytes=config.server.max_body_bytes)
    if config.server.api_key is not None:
        app.add_middleware(Auth, api_key=config.server.api_key)
    app.add_middleware(CountErrors, count=state.count_error)
    return app


def _post_routes(state: ServerState) -> dict[str, Endpoint]:
    return {
        "/v1/chat/completions": post(state, ChatRequest, chat),
        "/v1/completions": post(state, CompletionRequest, complete),
        "/generate": post(state, GenerateRequest, generate),
        "/v1/abort": post(state, AbortRequest, abort),
        "/tokenize": post(state, TokenizeRequest, tokenize),
        "/detokenize": post(state, DetokenizeRequest, detokenize),
        "/start_profile": post(state, StartProfileRequest, start_profile),
        "/stop_profile": post(state, StopProfileRequest, stop_profile),
    }


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    where = f"{request.method} {request.url.path}"[:200]
    if error.status_code == 404:
        return ApiError(404, f"there is no route {where}", code="unknown_url").response()
    if error.status_code == 405:
        return ApiError(405, f"{where} is not allowed", code="method_not_allowed", headers=error.headers).response()
    return error_response(error)


async def _unexpected(request: Request, error: Exception) -> Response:
    return error_response(error)
