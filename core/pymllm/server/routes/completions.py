"""POST /v1/completions."""

from __future__ import annotations

from starlette.responses import Response

from pymllm.frontend.frontend import Frontend
from pymllm.server.answers import Answers
from pymllm.server.collect import collect
from pymllm.server.endpoint import json_response
from pymllm.server.protocol.completions import DEFAULT_MAX_TOKENS, CompletionRequest
from pymllm.server.protocol.sampling import fill_length
from pymllm.server.render.completions import CompletionChunks, CompletionShape, text_completion
from pymllm.server.sse import EventStream
from pymllm.server.state import ServerState


async def complete(state: ServerState, body: CompletionRequest) -> Response:
    """Continue one prompt or many."""
    state.check_model(body.model)
    params = body.params()
    frontend = state.frontend
    answers = state.admit("cmpl-", body.request_id, len(body.prompts()) * params.n)
    try:
        shape = await state.in_thread(_shape, state, frontend, body)
        most = frontend.client.info.max_request_tokens
        every = [fill_length(params, len(prompt), DEFAULT_MAX_TOKENS, most) for prompt in shape.prompts]
        await answers.start(shape.prompts, every, frontend, priority=body.priority, namespace=body.cache_salt or "")
        return await _respond(state, body, answers, shape)
    except BaseException:
        answers.close()
        raise


async def _respond(state: ServerState, body: CompletionRequest, answers: Answers, shape: CompletionShape) -> Response:
    if body.stream:
        chunks = CompletionChunks(answers.id, shape, include_usage=body.include_usage)
        return EventStream(answers, chunks, on_error=state.count_error)
    found = await collect(answers, shape.prompts, [shape.n] * len(shape.prompts))
    return json_response(text_completion(answers.id, shape, found), {"X-Request-Id": answers.id})


def _shape(state: ServerState, frontend: Frontend, body: CompletionRequest) -> CompletionShape:
    """Tokenize, and decode what is echoed. Runs in a thread."""
    given = body.prompts()
    prompts = [one if isinstance(one, list) else frontend.encode(one, body.add_special_tokens) for one in given]
    echoes = None
    if body.echo:
        echoes = [one if isinstance(one, str) else frontend.decode(one) for one in given]
    return CompletionShape(
        model=state.model_name,
        texts=state.texts,
        prompts=prompts,
        echoes=echoes,
        n=body.n,
        logprobs=body.logprobs is not None,
        prompt_logprobs=body.prompt_logprobs is not None,
        scores_only=body.scores_only,
        skip_special_tokens=body.skip_special_tokens,
    )
