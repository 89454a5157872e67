"""What one step computes: the scheduler's decision, before it becomes tensors."""

from __future__ import annotations

from dataclasses import dataclass

from pymllm.engine.messages import TokenLogprobs
from pymllm.engine.request import Phase, Request


@dataclass(frozen=True, slots=True)
class StepItem:
    """Tokens [start, start + count) of one request. samples: the step also draws its next token. epoch: of the
    request when it was scheduled."""

    request: Request
    start: int
    count: int
    samples: bool
    epoch: int = 0

    @property
    def current(self) -> bool:
        """False once the request ended or was preempted: whatever the step brings for it is void."""
        return self.request.phase is Phase.running and self.request.epoch == self.epoch

    @property
    def answer_index(self) -> int:
        """Index in the answer of the token that the item samples."""
        return self.start + self.count - self.request.prompt_length


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
