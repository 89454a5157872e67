"""Gathers deltas: the usage of a request, and its answers as wholes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from pymllm.engine.messages import FinishReason, TokenLogprobs
from pymllm.frontend.generation import Delta
from pymllm.server.answers import Answers


@dataclass
class Usage:
    """Tokens of a request. prompt: of all prompts; each counts once, however many answers it has."""

    prompt: int
    completion: int = 0
    cached: dict[int, int] = field(default_factory=dict)

    def add(self, prompt: int, delta: Delta, *, first: bool) -> None:
        """Count news of an answer to prompt number ``prompt``. Of several answers to a prompt, the one that
        found least in the cache says what was computed."""
        self.completion += len(delta.token_ids)
        if first:
            self.cached[prompt] = min(delta.cached_tokens, self.cached.get(prompt, delta.cached_tokens))

    def as_openai(self) -> dict[str, object]:
        """OpenAI's ``usage`` object."""
        return {
            "prompt_tokens": self.prompt,
            "completion_tokens": self.completion,
            "total_tokens": self.prompt + self.completion,
            "prompt_tokens_details": {"cached_tokens": sum(self.cached.values())},
        }


@dataclass
class Whole:
    """One answer, as far as it has come. Fields as in Delta."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    cached_tokens: int = 0
    started: bool = False

    def add(self, delta: Delta) -> None:
        """Append news."""
        if not self.started:
            self.started, self.cached_tokens = True, delta.cached_tokens
        self.text += delta.text
        self.token_ids += delta.token_ids
        self.logprobs += delta.logprobs or ()
        self.finish_reason, self.stop_reason = delta.finish_reason, delta.stop_reason


@dataclass
class Collected:
    """answers[prompt][index]. prompt_logprobs[prompt]: None where none were asked for."""

    answers: list[list[Whole]]
    prompt_logprobs: list[list[TokenLogprobs | None] | None]
    usage: Usage


async def collect(answers: Answers, prompts: Sequence[list[int]], counts: Sequence[int]) -> Collected:
    """Wait for all answers. counts: n of each prompt. Raises ApiError when one ended with an error."""
    wholes = [[Whole() for _ in range(n)] for n in counts]
    prompt_logprobs: list[list[TokenLogprobs | None] | None] = [None] * len(prompts)
    usage = Usage(sum(map(len, prompts)))
    async for arrivals in answers.batches():
        for prompt, delta in arrivals:
            whole = wholes[prompt][delta.index]
            usage.add(prompt, delta, first=not whole.started)
            whole.add(delta)
            if delta.prompt_logprobs is not None:
                prompt_logprobs[prompt] = delta.prompt_logprobs
    return Collected(wholes, prompt_logprobs, usage)
