"""What the offline API answers."""

from __future__ import annotations

from dataclasses import dataclass, field

from pymllm.engine.messages import FinishReason, TokenLogprobs
from pymllm.frontend.generation import Delta


@dataclass
class CompletionOutput:
    """One answer.

    text: without the end token, and without the stop string unless it was asked for. token_ids: all that were
    drawn, the end token included. stop_reason: the stop string or token id that ended it.
    logprobs: per token a dict token id -> log-probability, the chosen token always among them; None if not
    asked for. cumulative_logprob: sum over the chosen tokens. error: a sentence, with finish_reason "error".
    """

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    logprobs: list[dict[int, float]] | None = None
    cumulative_logprob: float | None = None
    error: str | None = None


@dataclass
class RequestOutput:
    """The answers to one prompt.

    prompt: the text as given; None for token ids and conversations. outputs: ``n`` answers, by index.
    prompt_logprobs: per prompt token a dict token id -> log-probability, None for the first token.
    num_cached_tokens: prompt tokens that came from the prefix cache.
    """

    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    prompt_logprobs: list[dict[int, float] | None] | None = None
    num_cached_tokens: int = 0

    def add(self, delta: Delta) -> None:
        """Take in a delta of this prompt."""
        output = self.outputs[delta.index]
        if delta.index == 0 and not output.token_ids:
            self.num_cached_tokens = delta.cached_tokens
        if delta.prompt_logprobs is not None:
            self.prompt_logprobs = [
                None if entry is None else merged(token, entry)
                for token, entry in zip(self.prompt_token_ids, delta.prompt_logprobs)
            ]
        output.text += delta.text
        output.token_ids += delta.token_ids
        if delta.logprobs is not None:
            output.logprobs = output.logprobs or []
            output.logprobs += [merged(token, entry) for token, entry in zip(delta.token_ids, delta.logprobs)]
            gained = sum(entry.logprob for entry in delta.logprobs)
            output.cumulative_logprob = (output.cumulative_logprob or 0.0) + gained
        output.finish_reason = delta.finish_reason
        output.stop_reason = delta.stop_reason
        output.error = delta.error

    @property
    def finished(self) -> bool:
        """Whether every answer has ended."""
        return all(output.finish_reason is not None for output in self.outputs)


def merged(token: int, entry: TokenLogprobs) -> dict[int, float]:
    """A token's own log-probability and the likeliest ones', in one dict: likeliest first, then the token
    itself if it is not among them."""
    return {**entry.top, token: entry.logprob}
