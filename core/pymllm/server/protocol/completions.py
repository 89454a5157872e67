"""POST /v1/completions."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import model_validator

from pymllm.errors import RequestError
from pymllm.frontend.generation import Prompt
from pymllm.sampling import SamplingParams
from pymllm.server.protocol.base import Neutral
from pymllm.server.protocol.prompts import as_prompts
from pymllm.server.protocol.sampling import GenerationBody, check_count

DEFAULT_MAX_TOKENS = 16
"""OpenAI's default for text completions."""


class CompletionRequest(GenerationBody):
    """The body of a text completion.

    prompt: a string, strings, token ids, or lists of token ids. echo: the prompt precedes the answer.
    max_tokens: 0 is allowed with echo, to score a prompt. logprobs: N likeliest tokens beside the chosen one.
    add_special_tokens: for text prompts, whether the tokenizer adds its own (BOS, say).
    """

    unsupported: ClassVar[Neutral] = {"suffix": ("",), "response_format": ({"type": "text"},)}

    prompt: Any
    best_of: int | None = None
    echo: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    add_special_tokens: bool = True

    @model_validator(mode="after")
    def _consistent(self) -> CompletionRequest:
        if self.best_of is not None and self.best_of != self.n:
            raise RequestError("best_of is only supported when it equals n", "best_of")
        if self.max_tokens == 0 and not self.echo:
            raise RequestError("max_tokens must be at least 1 unless echo is true", "max_tokens")
        check_count(len(self.prompts()), self.n, "prompt")
        return self

    @property
    def scores_only(self) -> bool:
        """Whether only the prompt is wanted (max_tokens 0 with echo)."""
        return self.max_tokens == 0

    def prompts(self) -> list[Prompt]:
        """One entry per prompt. Raises RequestError."""
        return as_prompts(self.prompt, "prompt")

    def params(self) -> SamplingParams:
        """What the sampler is asked for; max_tokens is None if not given. Raises RequestError that names the field."""
        scored = [count for count in (self.prompt_logprobs, self.logprobs if self.echo else None) if count is not None]
        limit = None if self.max_tokens is None else max(self.max_tokens, 1)
        return self.sampling(max_tokens=limit, logprobs=self.logprobs, prompt_logprobs=max(scored) if scored else None)
