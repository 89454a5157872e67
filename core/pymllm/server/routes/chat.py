"""POST /v1/chat/completions."""

from __future__ import annotations

from starlette.responses import Response

from pymllm.server.collect import collect
from pymllm.server.endpoint import json_response
from pymllm.server.protocol.chat import ChatRequest
from pymllm.server.render.chat import chat_chunks, chat_completion
from pymllm.server.sse import EventStream
from pymllm.server.state import ServerState


async def chat(state: ServerState, body: ChatRequest) -> Response:
    """Answer a conversation."""
    state.check_model(body.model)
    params = body.params()
    frontend = state.frontend
    answers = state.admit("chatcmpl-", body.request_id, params.n)
    try:
        messages = body.template_messages()
        prompt = await state.in_thread(frontend.chat_ids, messages, **body.template_arguments())
        await answers.start([prompt], [params], frontend, priority=body.priority, namespace=body.cache_salt or "")
        if body.stream:
            chunks = chat_chunks(
                answers, state.model_name, prompt, state.texts, logprobs=body.logprobs, include_usage=body.include_usage
            )
            return EventStream(chunks, id=answers.id, on_end=answers.close, on_error=state.count_error)
        found = await collect(answers, [prompt], [params.n])
        whole = chat_completion(answers.id, state.model_name, found, state.texts, logprobs=body.logprobs)
        return json_response(whole, {"X-Request-Id": answers.id})
    except BaseException:
        answers.close()
        raise
