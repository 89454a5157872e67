"""Text completions, whole and in chunks."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from pymllm.engine.messages import TokenLogprobs
from pymllm.frontend.generation import Delta
from pymllm.server.answers import Answers, Arrival
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


async def completion_chunks(
    answers: Answers, shape: CompletionShape, *, include_usage: bool
) -> AsyncIterator[dict[str, Any]]:
    """The chunks of a streamed answer; with echo, each answer's first chunk holds the prompt."""
    usage = Usage(sum(map(len, shape.prompts)))
    writers: dict[tuple[int, int], _ChoiceWriter] = {}
    scores: dict[int, list[TokenLogprobs | None]] = {}
    head = {**shape.head(answers.id), **({"usage": None} if include_usage else {})}
    async for prompt, received in _scored(answers, shape.needs_prompt_scores):
        delta = shape.without_answer(received)
        if delta.prompt_logprobs is not None:
            scores[prompt] = delta.prompt_logprobs
        key = (prompt, delta.index)
        usage.add(prompt, delta, first=key not in writers)
        writer = writers.get(key) or writers.setdefault(key, _ChoiceWriter(shape, *key))
        if writer.has_news(delta):
            yield {**head, "choices": [writer.write(delta, scores.get(prompt))]}
    if include_usage:
        yield {**head, "choices": [], "usage": usage.as_openai()}


async def _scored(answers: Answers, wait: bool) -> AsyncIterator[Arrival]:
    """The arrivals; with ``wait``, those of a prompt's other answers are held back until its first answer
    has brought the prompt's log-probabilities."""
    held: defaultdict[int, list[Delta]] = defaultdict(list)
    known: set[int] = set()
    async for prompt, delta in answers:
        if not wait or prompt in known:
            yield prompt, delta
        elif delta.prompt_logprobs is None and not (delta.index == 0 and delta.finish_reason):
            held[prompt].append(delta)
        else:
            known.add(prompt)
            yield prompt, delta
            for earlier in held.pop(prompt, ()):
                yield prompt, earlier


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
        text, tokens, logprobs = delta.text, list(delta.token_ids), list[TokenLogprobs | None](delta.logprobs or ())
        prompt = shape.prompts[self._prompt]
        if opens and shape.echoes is not None:
            text = shape.echoes[self._prompt] + text
            tokens, logprobs = prompt + tokens, list(scores or ()) + logprobs
        choice: dict[str, Any] = {
            "index": self._number,
            "text": text,
            "logprobs": self._logprobs.chunk(tokens, logprobs) if shape.logprobs else None,
            "finish_reason": delta.finish_reason,
            "stop_reason": delta.stop_reason,
        }
        if opens and shape.prompt_logprobs and scores is not None:
            choice["prompt_logprobs"] = prompt_logprobs(shape.texts, prompt, scores)
        return choice
