"""Log-probabilities in the forms of the two OpenAI routes and of vLLM's ``prompt_logprobs``."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Any

from pymllm.engine.messages import TokenLogprobs
from pymllm.server.token_text import TokenTexts

LEAST = -9999.0
"""OpenAI's value for "as good as impossible"; JSON has no infinity."""


def chat_logprobs(texts: TokenTexts, tokens: Sequence[int], logprobs: Sequence[TokenLogprobs]) -> dict[str, Any]:
    """``choices[].logprobs`` of a chat completion: one entry a token, with its bytes."""
    content = []
    for token, found in zip(tokens, logprobs):
        top = [_entry(texts, other, value) for other, value in found.top.items()]
        content.append({**_entry(texts, token, found.logprob), "top_logprobs": top})
    return {"content": content, "refusal": None}


def _entry(texts: TokenTexts, token: int, logprob: float) -> dict[str, Any]:
    return {"token": texts.text(token), "logprob": finite(logprob), "bytes": list(texts.utf8(token))}


def finite(logprob: float) -> float:
    """The value itself, or LEAST for minus infinity."""
    return max(logprob, LEAST)


class CompletionLogprobs:
    """``choices[].logprobs`` of a text completion, chunk by chunk.

    text_offset counts the characters, over echo and answer together, that the tokens before have completed.
    """

    def __init__(self, texts: TokenTexts, *, skip_special_tokens: bool) -> None:
        self._texts = texts
        self._skip = texts.special if skip_special_tokens else frozenset()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._offset = 0

    def chunk(self, tokens: Sequence[int], logprobs: Sequence[TokenLogprobs | None]) -> dict[str, Any]:
        """The four parallel arrays for these tokens. None: the first token of a prompt, which nothing predicted."""
        result: dict[str, list[Any]] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        for token, found in zip(tokens, logprobs):
            result["tokens"].append(self._texts.text(token))
            result["token_logprobs"].append(None if found is None else finite(found.logprob))
            result["top_logprobs"].append(None if found is None else self._top(token, found))
            result["text_offset"].append(self._offset)
            if token not in self._skip:
                self._offset += len(self._decoder.decode(self._texts.utf8(token)))
        return result

    def _top(self, token: int, found: TokenLogprobs) -> dict[str, float]:
        """The chosen token is always among them, as OpenAI's reference says."""
        both = {**found.top, token: found.top.get(token, found.logprob)}
        return {self._texts.text(one): finite(value) for one, value in both.items()}


def prompt_logprobs(
    texts: TokenTexts, tokens: Sequence[int], logprobs: Sequence[TokenLogprobs | None]
) -> list[dict[str, Any] | None]:
    """vLLM's ``prompt_logprobs``: per token, token id -> logprob, rank and text. The rank of a token
    outside the likeliest ones is not known: null."""
    result: list[dict[str, Any] | None] = []
    for token, found in zip(tokens, logprobs):
        if found is None:
            result.append(None)
            continue
        ranks = {one: rank for rank, one in enumerate(found.top, 1)}
        both = {token: found.logprob, **found.top}
        result.append(
            {
                str(one): {"logprob": finite(value), "rank": ranks.get(one), "decoded_token": texts.text(one)}
                for one, value in both.items()
            }
        )
    return result
