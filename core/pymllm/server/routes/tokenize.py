"""POST /tokenize and POST /detokenize."""

from __future__ import annotations

from starlette.responses import Response

from pymllm.server.endpoint import json_response
from pymllm.server.media import read_chat
from pymllm.server.protocol.tokenize import DetokenizeRequest, TokenizeRequest
from pymllm.server.state import ServerState


async def tokenize(state: ServerState, body: TokenizeRequest) -> Response:
    """Token ids of a text or a conversation, as the completion routes would see them."""
    state.check_model(body.model)
    frontend = state.frontend
    if body.prompt is not None:
        special = body.add_special_tokens is not False
        tokens = await state.in_thread(frontend.encode, body.prompt, special)
    else:
        tokens = (await read_chat(state, frontend, body)).token_ids
    return json_response(
        {
            "count": len(tokens),
            "max_model_len": frontend.client.info.max_context,
            "tokens": tokens,
            "token_strs": [state.texts.piece(token) for token in tokens] if body.return_token_strs else None,
        }
    )


async def detokenize(state: ServerState, body: DetokenizeRequest) -> Response:
    """The text of token ids, special tokens included."""
    state.check_model(body.model)
    return json_response({"prompt": await state.in_thread(state.frontend.decode, body.tokens)})
