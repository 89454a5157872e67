"""The door: what can never be served is refused here, with the numbers, before anything is queued."""

from __future__ import annotations

from pymllm.engine.messages import EngineInfo, EngineRequest
from pymllm.errors import RequestError


def max_length(request: EngineRequest, info: EngineInfo) -> int:
    """Most tokens, prompt and answer together, that a request may come to."""
    asked = request.sampling.max_tokens
    if asked is None:
        return info.max_request_tokens
    return min(len(request.token_ids) + asked, info.max_request_tokens)


def check(request: EngineRequest, info: EngineInfo) -> None:
    """Raises RequestError for a request that the engine could never finish."""
    count = len(request.token_ids)
    if count == 0:
        raise RequestError("the prompt is empty; give at least one token", "prompt")
    try:
        low, high = int(request.ids.min()), int(request.ids.max())
    except OverflowError:  # not even 64 bits hold it
        low, high = min(request.token_ids), max(request.token_ids)
    if low < 0 or high >= info.vocab_size:
        wrong = low if low < 0 else high
        raise RequestError(f"token id {wrong} is outside the vocabulary (0 to {info.vocab_size - 1})", "prompt")
    _check_length(count, request.sampling.max_tokens, info)
    for name, tokens in (
        ("logit_bias", request.sampling.logit_bias or {}),
        ("stop_token_ids", request.sampling.stop_token_ids or []),
    ):
        for token in tokens:
            if not 0 <= token < info.vocab_size:
                raise RequestError(
                    f"{name}: token id {token} is outside the vocabulary (0 to {info.vocab_size - 1})", name
                )


def _check_length(prompt: int, answer: int | None, info: EngineInfo) -> None:
    limit = info.max_request_tokens
    what = (
        f"the model's context of {limit} tokens"
        if limit == info.max_context
        else f"the KV pool, which holds {limit} tokens for one request"
    )
    if prompt >= limit:
        raise RequestError(
            f"the prompt has {prompt} tokens, but must fit with at least one token of answer into {what}; shorten it",
            "prompt",
        )
    if answer is not None and prompt + answer > limit:
        raise RequestError(
            f"prompt ({prompt} tokens) and max_tokens ({answer}) together exceed {what}; "
            f"max_tokens can be at most {limit - prompt}",
            "max_tokens",
        )
