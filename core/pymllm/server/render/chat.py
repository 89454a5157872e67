"""Chat completions, whole and in chunks."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

from pymllm.frontend.generation import Delta
from pymllm.server.collect import Collected, Usage, Whole
from pymllm.server.render.logprobs import chat_logprobs
from pymllm.server.token_text import TokenTexts


def chat_completion(id: str, model: str, found: Collected, texts: TokenTexts, *, logprobs: bool) -> dict[str, Any]:
    """The body of an answer that is not streamed."""
    return {
        "id": id,
        "object": "chat.completion",
        "created": int(time.time()),
        "model": model,
        "choices": [_choice(i, whole, texts, logprobs) for i, whole in enumerate(found.answers[0])],
        "usage": found.usage.as_openai(),
        "system_fingerprint": None,
    }


def _choice(index: int, whole: Whole, texts: TokenTexts, logprobs: bool) -> dict[str, Any]:
    return {
        "index": index,
        "message": {"role": "assistant", "content": whole.text, "refusal": None},
        "logprobs": chat_logprobs(texts, whole.token_ids, whole.logprobs) if logprobs else None,
        "finish_reason": whole.finish_reason,
        "stop_reason": whole.stop_reason,
    }


class ChatChunks:
    """The chunks of a streamed answer: each answer opens with its role and closes with its finish reason."""

    def __init__(
        self, id: str, model: str, prompt: Sequence[int], texts: TokenTexts, *, logprobs: bool, include_usage: bool
    ) -> None:
        self._texts = texts
        self._logprobs = logprobs
        self._usage = Usage(len(prompt))
        self._include_usage = include_usage
        self._opened: set[int] = set()
        self._head: dict[str, Any] = {
            "id": id,
            "object": "chat.completion.chunk",
            "created": int(time.time()),
            "model": model,
            "system_fingerprint": None,
            **({"usage": None} if include_usage else {}),
        }

    def news(self, prompt: int, delta: Delta) -> Iterator[dict[str, Any]]:
        """See :class:`pymllm.server.sse.ChunkWriter`."""
        first = delta.index not in self._opened
        self._usage.add(prompt, delta, first=first)
        if first:
            self._opened.add(delta.index)
            role = {"role": "assistant", "content": ""}
            yield {**self._head, "choices": [_chunk_choice(delta.index, role)]}
        if delta.text or delta.finish_reason or (self._logprobs and delta.token_ids):
            yield {**self._head, "choices": [_news(delta, self._texts, self._logprobs)]}

    def end(self) -> Iterator[dict[str, Any]]:
        """The usage, if it was asked for."""
        if self._include_usage:
            yield {**self._head, "choices": [], "usage": self._usage.as_openai()}


def _news(delta: Delta, texts: TokenTexts, logprobs: bool) -> dict[str, Any]:
    choice = _chunk_choice(delta.index, {"content": delta.text} if delta.text else {})
    if logprobs and delta.token_ids:
        choice["logprobs"] = chat_logprobs(texts, delta.token_ids, delta.logprobs or ())
    if delta.finish_reason:
        choice.update(finish_reason=delta.finish_reason, stop_reason=delta.stop_reason)
    return choice


def _chunk_choice(index: int, delta: dict[str, Any]) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
