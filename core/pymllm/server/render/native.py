"""SGLang's answers to /generate, whole and in chunks."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pymllm.engine.messages import TokenLogprobs
from pymllm.frontend.generation import Delta
from pymllm.server.collect import Collected, Whole
from pymllm.server.render.logprobs import finite
from pymllm.server.token_text import TokenTexts


@dataclass(frozen=True)
class NativeShape:
    """What the answers to /generate show.

    counts: n of each prompt. input_from: first prompt token whose log-probability is shown, -1 for none.
    top: likeliest tokens shown beside each. token_texts: whether log-probabilities carry the text.
    started: time.monotonic() when the request came.
    """

    texts: TokenTexts
    prompts: list[list[int]]
    counts: list[int]
    logprobs: bool
    input_from: int
    top: int
    token_texts: bool
    started: float

    def answer(self, id: str, prompt: int, whole: Whole, scores: list[TokenLogprobs | None] | None) -> dict[str, Any]:
        """One answer, as far as it has come."""
        meta: dict[str, Any] = {
            "id": id,
            "finish_reason": _finish_reason(whole),
            "prompt_tokens": len(self.prompts[prompt]),
            "completion_tokens": len(whole.token_ids),
            "cached_tokens": whole.cached_tokens,
        }
        if whole.finish_reason is not None:
            meta["e2e_latency"] = time.monotonic() - self.started
        if self.logprobs:
            meta |= self._scores("output", whole.token_ids, whole.logprobs)
            skip = max(self.input_from, 0)
            tokens, found = (self.prompts[prompt], scores) if self.input_from >= 0 and scores else ([], [])
            meta |= self._scores("input", tokens[skip:], found[skip:])
        return {"text": whole.text, "output_ids": list(whole.token_ids), "meta_info": meta}

    def _scores(self, kind: str, tokens: list[int], found: Any) -> dict[str, Any]:
        pairs = list(zip(tokens, found))
        result: dict[str, Any] = {
            f"{kind}_token_logprobs": [self._triple(token, one.logprob if one else None) for token, one in pairs]
        }
        if self.top:
            result[f"{kind}_top_logprobs"] = [
                [self._triple(other, value) for other, value in one.top.items()] if one else None for _, one in pairs
            ]
        return result

    def _triple(self, token: int, logprob: float | None) -> tuple[float | None, int, str | None]:
        value = None if logprob is None else finite(logprob)
        return (value, token, self.texts.text(token) if self.token_texts else None)

    def member(self, id: str, prompt: int, index: int) -> str:
        """The id of one answer: the request's own, numbered where there are several."""
        number = sum(self.counts[:prompt]) + index
        return id if sum(self.counts) == 1 else f"{id}-{number}"


def _finish_reason(whole: Whole) -> dict[str, Any] | None:
    if whole.finish_reason is None:
        return None
    if whole.finish_reason == "stop":
        return {"type": "stop", "matched": whole.stop_reason}
    if whole.finish_reason == "length":
        return {"type": "length", "length": len(whole.token_ids)}
    return {"type": "abort", "message": "the request was aborted"}


def native_answers(id: str, shape: NativeShape, found: Collected, *, batched: bool) -> Any:
    """The body of an answer that is not streamed: an object, or a list for a batch or several answers."""
    results = [
        shape.answer(shape.member(id, prompt, index), prompt, whole, found.prompt_logprobs[prompt])
        for prompt, wholes in enumerate(found.answers)
        for index, whole in enumerate(wholes)
    ]
    return results if batched or len(results) > 1 else results[0]


class NativeChunks:
    """Each chunk holds an answer as far as it has come (text and ids grow), with its number in a batch."""

    def __init__(self, id: str, shape: NativeShape, *, batched: bool) -> None:
        self._id = id
        self._shape = shape
        self._numbered = batched or sum(shape.counts) > 1
        self._wholes: dict[tuple[int, int], Whole] = {}
        self._scores: dict[int, list[TokenLogprobs | None]] = {}

    def news(self, prompt: int, delta: Delta) -> Iterator[dict[str, Any]]:
        """See :class:`pymllm.server.sse.ChunkWriter`."""
        shape = self._shape
        whole = self._wholes.setdefault((prompt, delta.index), Whole())
        whole.add(delta)
        if delta.prompt_logprobs is not None:
            self._scores[prompt] = delta.prompt_logprobs
        member = shape.member(self._id, prompt, delta.index)
        chunk = shape.answer(member, prompt, whole, self._scores.get(prompt))
        if self._numbered:
            chunk["index"] = sum(shape.counts[:prompt]) + delta.index
        yield chunk

    def end(self) -> Iterator[dict[str, Any]]:
        """Nothing: the usage is in every chunk."""
        return iter(())
