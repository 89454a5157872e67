"""POST /v1/chat/completions."""

from __future__ import annotations

from starlette.responses import Response

from pymllm.server.collect import collect
from pymllm.server.endpoint import json_response
from pymllm.server.media import read_chat
from pymllm.server.protocol.chat import ChatRequest
from pymllm.server.render.chat import ChatChunks, chat_completion
from pymllm.server.sse import EventStream
from pymllm.server.state import ServerState


async def chat(state: ServerState, body: ChatRequest) -> Response:
    """Answer a conversation."""
    state.check_model(body.model)
    params = body.params()
    frontend = state.frontend
    answers = state.admit("chatcmpl-", body.request_id, params.n)
    try:
        placed = await read_chat(state, frontend, body)
        prompt = placed.token_ids
        await answers.start([placed], [params], frontend, priority=body.priority, namespace=body.cache_salt or "")
        del placed  # its pixels are the engine's from now on
        if body.stream:
            chunks = ChatChunks(
                answers.id,
                state.model_name,
                prompt,
                state.texts,
                logprobs=body.logprobs,
                include_usage=body.include_usage,
            )
            return EventStream(answers, chunks, on_error=state.count_error)
        found = await collect(answers, [prompt], [params.n])
        whole = chat_completion(answers.id, state.model_name, found, state.texts, logprobs=body.logprobs)
        return json_response(whole, {"X-Request-Id": answers.id})
    except BaseException:
        answers.close()
        raise
