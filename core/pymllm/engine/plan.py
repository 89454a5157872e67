"""What one step computes: the scheduler's decision, before it becomes tensors."""

from __future__ import annotations

from dataclasses import dataclass

from pymllm.engine.messages import TokenLogprobs
from pymllm.engine.request import Request


@dataclass(frozen=True, slots=True)
class StepItem:
    """Tokens [start, start + count) of one request. samples: the step also draws its next token."""

    request: Request
    start: int
    count: int
    samples: bool


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One flat batch: decodes and prefill chunks, one item a request."""

    items: list[StepItem]

    @property
    def tokens(self) -> int:
        """Tokens that the step computes."""
        return sum(item.count for item in self.items)


@dataclass(slots=True)
class ItemResult:
    """What a step brought for one plan item. token: None if the item does not sample. valid: its logits
    (or, if it does not sample, its last hidden state) were numbers. logprobs: the token's. prompt_logprobs:
    of the prompt tokens after each computed one."""

    token: int | None = None
    valid: bool = True
    logprobs: TokenLogprobs | None = None
    prompt_logprobs: list[TokenLogprobs] | None = None
