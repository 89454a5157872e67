"""POST /generate and POST /v1/abort."""

from __future__ import annotations

import time

from starlette.responses import Response

from pymllm.frontend.frontend import Frontend
from pymllm.frontend.generation import Prompt
from pymllm.server.collect import collect
from pymllm.server.endpoint import json_response
from pymllm.server.protocol.native import DEFAULT_MAX_TOKENS, AbortRequest, GenerateRequest
from pymllm.server.protocol.sampling import fill_length
from pymllm.server.render.native import NativeShape, native_answers, native_chunks
from pymllm.server.sse import EventStream
from pymllm.server.state import ServerState


async def generate(state: ServerState, body: GenerateRequest) -> Response:
    """Continue one prompt or a batch, in SGLang's protocol."""
    state.check_model(body.model)
    started = time.monotonic()
    params = body.params()
    counts = [one.n for one in params]
    frontend = state.frontend
    answers = state.admit("gen-", body.rid, sum(counts))
    try:
        prompts = await state.in_thread(_tokenize, frontend, body.prompts())
        shape = NativeShape(
            texts=state.texts,
            prompts=prompts,
            counts=counts,
            logprobs=body.return_logprob,
            input_from=body.logprob_start_len,
            top=body.top_logprobs_num,
            token_texts=body.return_text_in_logprobs,
            started=started,
        )
        most = frontend.client.info.max_request_tokens
        params = [fill_length(one, len(ids), DEFAULT_MAX_TOKENS, most) for one, ids in zip(params, prompts)]
        await answers.start(prompts, params, frontend, priority=body.priority)
        if body.stream:
            chunks = native_chunks(answers, shape, batched=body.batched)
            return EventStream(chunks, id=answers.id, on_end=answers.close, on_error=state.count_error)
        found = await collect(answers, prompts, counts)
        return json_response(native_answers(answers.id, shape, found, batched=body.batched))
    except BaseException:
        answers.close()
        raise


def _tokenize(frontend: Frontend, prompts: list[Prompt]) -> list[list[int]]:
    return [one if isinstance(one, list) else frontend.encode(one) for one in prompts]


async def abort(state: ServerState, body: AbortRequest) -> Response:
    """End open answers; an id that is not open is no error, since it may just have ended."""
    return json_response({"aborted": state.abort(body.target)})
