"""POST /generate and POST /v1/abort."""

from __future__ import annotations

import time

from starlette.responses import Response

from pymllm.server.collect import collect
from pymllm.server.endpoint import json_response
from pymllm.server.media import read_prompts
from pymllm.server.protocol.native import DEFAULT_MAX_TOKENS, AbortRequest, GenerateRequest
from pymllm.server.protocol.sampling import fill_length
from pymllm.server.render.native import NativeChunks, NativeShape, native_answers
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
        placed = await read_prompts(state, frontend, body.prompts(), body.references())
        prompts = [one.token_ids for one in placed]
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
        await answers.start(placed, params, frontend, priority=body.priority)
        del placed  # the pixels are the engine's from now on
        if body.stream:
            chunks = NativeChunks(answers.id, shape, batched=body.batched)
            return EventStream(answers, chunks, on_error=state.count_error)
        found = await collect(answers, prompts, counts)
        return json_response(native_answers(answers.id, shape, found, batched=body.batched))
    except BaseException:
        answers.close()
        raise


async def abort(state: ServerState, body: AbortRequest) -> Response:
    """End open answers; an id that is not open is no error, since it may just have ended."""
    return json_response({"aborted": state.abort(body.target)})
