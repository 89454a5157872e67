"""POST /start_profile and POST /stop_profile: a trace of the running engine's steps."""

from __future__ import annotations

import asyncio

from starlette.responses import Response

from pymllm.engine.messages import ProfileRequest
from pymllm.errors import RequestError
from pymllm.server.endpoint import json_response
from pymllm.server.exposure import is_exposed
from pymllm.server.protocol.errors import ApiError
from pymllm.server.protocol.profile import StartProfileRequest, StopProfileRequest
from pymllm.server.state import ServerState
from pymllm.trace import trace_folder


async def start_profile(state: ServerState, body: StartProfileRequest) -> Response:
    """Start; answers where the trace will be."""
    if body.output_dir is not None and is_exposed(state.config):
        raise ApiError(
            403,
            "output_dir names a folder of the server's machine, and this server lets other machines in without a key; "
            "set server.api_key, or leave output_dir out",
            param="output_dir",
        )
    folder = trace_folder(body.output_dir).absolute()
    wanted = ProfileRequest(folder=str(folder), steps=body.num_steps, stacks=body.with_stack)
    try:
        profile = await asyncio.to_thread(state.frontend.client.start_profile, wanted)
    except RequestError as error:
        raise RequestError(str(error), "output_dir") from error
    return json_response({"trace": profile.path, "num_steps": body.num_steps})


async def stop_profile(state: ServerState, body: StopProfileRequest) -> Response:
    """Stop, and answer once the trace is written."""
    profile = await asyncio.to_thread(state.frontend.client.stop_profile)
    return json_response({"trace": profile.path, "num_steps": profile.steps})
