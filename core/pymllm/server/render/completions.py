"""Text completions, whole and in chunks."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pymllm.engine.messages import TokenLogprobs
from pymllm.frontend.generation import Delta
from pymllm.server.collect import Collected, Usage
from pymllm.server.render.logprobs import CompletionLogprobs, prompt_logprobs
from pymllm.server.token_text import TokenTexts


@dataclass(frozen=True)
class CompletionShape:
    """What the answers to a text completion show.

    prompts: token ids. echoes: text of each prompt, None without echo. scores_only: the one token that was
    generated to score the prompt is not shown. logprobs, prompt_logprobs: whether they were asked for.
    """

    model: str
    texts: TokenTexts
    prompts: list[list[int]]
    echoes: list[str] | None
    n: int
    logprobs: bool
    prompt_logprobs: bool
    scores_only: bool
    skip_special_tokens: bool

    @property
    def needs_prompt_scores(self) -> bool:
        """Whether an answer cannot be shown before the prompt's log-probabilities are known."""
        return self.prompt_logprobs or (self.logprobs and self.echoes is not None)

    def head(self, id: str) -> dict[str, Any]:
        """What every chunk and the whole answer have in common."""
        return {"id": id, "object": "text_completion", "created": int(time.time()), "model": self.model}

    def without_answer(self, delta: Delta) -> Delta:
        """The delta, stripped of the answer if only the prompt is wanted."""
        if not self.scores_only:
            return delta
        last = "length" if delta.finish_reason == "stop" else delta.finish_reason
        return Delta(delta.index, prompt_logprobs=delta.prompt_logprobs, finish_reason=last,
                     cached_tokens=delta.cached_tokens, error=delta.error)  # fmt: skip


def text_completion(id: str, shape: CompletionShape, found: Collected) -> dict[str, Any]:
    """The body of an answer that is not streamed; choices are ordered by prompt, then answer."""
    choices = []
    for prompt, wholes in enumerate(found.answers):
        scores = found.prompt_logprobs[prompt]
        for index, whole in enumerate(wholes):
            writer = _ChoiceWriter(shape, prompt, index)
            delta = Delta(index, whole.text, whole.token_ids, whole.logprobs, scores,
                          whole.finish_reason, whole.stop_reason)  # fmt: skip
            choices.append(writer.write(shape.without_answer(delta), scores))
    if shape.scores_only:
        found.usage.completion = 0
    return {**shape.head(id), "choices": choices, "usage": found.usage.as_openai()}


class CompletionChunks:
    """The chunks of a streamed answer; with echo, each answer's first chunk holds the prompt."""

    def __init__(self, id: str, shape: CompletionShape, *, include_usage: bool) -> None:
        self._shape = shape
        self._waits = shape.needs_prompt_scores
        self._include_usage = include_usage
        self._head = {**shape.head(id), **({"usage": None} if include_usage else {})}
        self._usage = Usage(sum(map(len, shape.prompts)))
        self._writers: dict[tuple[int, int], _ChoiceWriter] = {}
        self._scores: dict[int, list[TokenLogprobs | None]] = {}
        self._held: defaultdict[int, list[Delta]] = defaultdict(list)
        self._ready: set[int] = set()

    def news(self, prompt: int, delta: Delta) -> list[dict[str, Any]]:
        """See :class:`pymllm.server.sse.ChunkWriter`."""
        if not self._waits:
            return self._written(prompt, self._shape.without_answer(delta))
        released = self._released(prompt, delta)
        return [chunk for one in released for chunk in self._written(prompt, self._shape.without_answer(one))]

    def end(self) -> Iterator[dict[str, Any]]:
        """The usage, if it was asked for."""
        if self._include_usage:
            yield {**self._head, "choices": [], "usage": self._usage.as_openai()}

    def _released(self, prompt: int, delta: Delta) -> list[Delta]:
        """What can be shown now: a prompt's other answers are held back until its first one has brought the
        prompt's log-probabilities."""
        if prompt in self._ready:
            return [delta]
        if delta.prompt_logprobs is None and not (delta.index == 0 and delta.finish_reason):
            self._held[prompt].append(delta)
            return []
        self._ready.add(prompt)
        return [delta, *self._held.pop(prompt, ())]

    def _written(self, prompt: int, delta: Delta) -> list[dict[str, Any]]:
        if delta.prompt_logprobs is not None:
            self._scores[prompt] = delta.prompt_logprobs
        key = (prompt, delta.index)
        writer = self._writers.get(key)
        self._usage.add(prompt, delta, first=writer is None)
        if writer is None:
            writer = self._writers[key] = _ChoiceWriter(self._shape, *key)
        if not writer.has_news(delta):
            return []
        return [{**self._head, "choices": [writer.write(delta, self._scores.get(prompt))]}]


class _ChoiceWriter:
    """Writes one choice: all at once, or in pieces that add up to the same."""

    def __init__(self, shape: CompletionShape, prompt: int, index: int) -> None:
        self._shape = shape
        self._prompt = prompt
        self._number = prompt * shape.n + index
        self._opened = False
        self._logprobs = CompletionLogprobs(shape.texts, skip_special_tokens=shape.skip_special_tokens)

    def has_news(self, delta: Delta) -> bool:
        opens = not self._opened and (self._shape.echoes is not None or self._shape.prompt_logprobs)
        return bool(delta.text or delta.finish_reason or opens or (self._shape.logprobs and delta.token_ids))

    def write(self, delta: Delta, scores: list[TokenLogprobs | None] | None) -> dict[str, Any]:
        shape, opens = self._shape, not self._opened
        self._opened = True
        echo = shape.echoes[self._prompt] if opens and shape.echoes is not None else None
        choice: dict[str, Any] = {
            "index": self._number,
            "text": delta.text if echo is None else echo + delta.text,
            "logprobs": self._scored(delta, scores, with_prompt=echo is not None) if shape.logprobs else None,
            "finish_reason": delta.finish_reason,
            "stop_reason": delta.stop_reason,
        }
        if opens and shape.prompt_logprobs and scores is not None:
            choice["prompt_logprobs"] = prompt_logprobs(shape.texts, shape.prompts[self._prompt], scores)
        return choice

    def _scored(self, delta: Delta, scores: list[TokenLogprobs | None] | None, *, with_prompt: bool) -> dict[str, Any]:
        tokens, logprobs = delta.token_ids, list[TokenLogprobs | None](delta.logprobs or ())
        if with_prompt:
            tokens, logprobs = self._shape.prompts[self._prompt] + tokens, list(scores or ()) + logprobs
        return self._logprobs.chunk(tokens, logprobs)
