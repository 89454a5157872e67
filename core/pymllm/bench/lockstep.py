"""Equal requests that move in lockstep, run by an engine's runner without its scheduler."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence

from pymllm.bench.results import BenchmarkError
from pymllm.engine.assemble import Assembled
from pymllm.engine.messages import EngineInfo, EngineRequest
from pymllm.engine.plan import ItemResult, StepItem, StepPlan
from pymllm.engine.request import Phase, Request
from pymllm.errors import ConfigError
from pymllm.frontend.generation import PlacedPrompt
from pymllm.sampling import SamplingParams


def check_fits(info: EngineInfo, batch_size: int, length: int) -> None:
    """Raise ConfigError unless ``batch_size`` requests of ``length`` tokens, prompt and answer, fit at once."""
    if batch_size > info.max_running_requests:
        raise ConfigError(
            f"a batch of {batch_size} is more than engine.max_running_requests allows "
            f"({info.max_running_requests}); set it to at least {batch_size}"
        )
    if length > info.max_request_tokens:
        raise ConfigError(
            f"a prompt and an answer of {length} tokens are more than one request may have here "
            f"({info.max_request_tokens}); shorten them, or raise model.max_context or engine.max_total_tokens"
        )
    pages = batch_size * -(-length // info.page_size)
    if pages > info.pages:
        raise ConfigError(
            f"{batch_size} x {length} tokens take {pages * info.page_size} tokens of KV, but the pool holds "
            f"{info.capacity_tokens}; use fewer or shorter requests, or raise engine.memory_fraction"
        )


class Lockstep:
    """A batch of prompts of one length, each answered with ``output_len`` tokens; end tokens are ignored.

    Steps are launched as the engine launches them: where it overlaps them, the next decode is launched before
    the last one's tokens are read. Call ``prefill`` to its end, then ``decode``. Only one batch may be under way:
    it uses the KV pool and the request slots from their beginning. Prompts are computed in chunks of at most
    ``engine.max_batch_tokens`` tokens.
    """

    def __init__(
        self,
        parts: Assembled,
        prompts: Sequence[list[int] | PlacedPrompt],
        output_len: int,
        sampling: SamplingParams,
        *,
        seed: int,
    ) -> None:
        """sampling: with defaults filled. Raises ConfigError if the batch does not fit."""
        info = parts.info
        self._runner = parts.runner
        self._depth = 2 if parts.overlap else 1
        placed = [prompt if isinstance(prompt, PlacedPrompt) else PlacedPrompt(prompt) for prompt in prompts]
        self._input_len, self._output_len = len(placed[0].token_ids), output_len
        length = self._input_len + output_len
        check_fits(info, len(prompts), length)
        pages = -(-length // info.page_size)
        self.requests = [
            Request(
                EngineRequest(
                    id=f"row-{row}",
                    token_ids=prompt.token_ids,
                    sampling=sampling,
                    media=prompt.media,
                    inputs=prompt.inputs,
                    positions=prompt.positions,
                    position_delta=prompt.position_delta,
                ),
                serial=row,
                seed=seed + row,
                max_length=length,
                phase=Phase.running,
                slot=row,
                pages=list(range(1 + row * pages, 1 + (row + 1) * pages)),
            )
            for row, prompt in enumerate(placed)
        ]
        self._chunks = _chunks(self.requests, info.max_batch_tokens)

    def prefill(self) -> Iterator[float]:
        """Compute the prompts and sample the first tokens. Yields the moment (``time.perf_counter``) at which the
        results of each step had arrived. Raises BenchmarkError for logits that are not numbers."""
        return self._run(self._chunks)

    def decode(self, steps: int | None = None) -> Iterator[float]:
        """Sample the other ``output_len - 1`` tokens, or only so many; yields and raises as ``prefill``."""
        count = self._output_len - 1 if steps is None else min(steps, self._output_len - 1)
        first = self._input_len
        return self._run(
            StepPlan([StepItem(request, position, 1, True) for request in self.requests])
            for position in range(first, first + count)
        )

    def _run(self, plans: Sequence[StepPlan] | Iterator[StepPlan]) -> Iterator[float]:
        flying: deque[tuple[StepPlan, Callable[[], list[ItemResult]]]] = deque()
        for plan in plans:
            flying.append((plan, self._runner.launch(plan)))
            if len(flying) == self._depth:
                yield _take(*flying.popleft())
        while flying:
            yield _take(*flying.popleft())


def _take(plan: StepPlan, wait: Callable[[], list[ItemResult]]) -> float:
    """Wait for a step's results and hand its tokens to the requests."""
    results = wait()
    moment = time.perf_counter()
    for item, result in zip(plan.items, results):
        if not result.valid:
            raise BenchmarkError("the model's logits are not numbers (NaN or infinite), so the run was not measured")
        if item.samples:
            assert result.token is not None, "an item that samples brings a token"
            item.request.tokens.append(result.token)
    return moment


def _chunks(requests: Sequence[Request], most: int) -> list[StepPlan]:
    """The prompts, one after another, in steps of at most ``most`` tokens."""
    plans: list[StepPlan] = []
    items: list[StepItem] = []
    left = most
    for request in requests:
        start, length = 0, request.prompt_length
        while start < length:
            count = min(left, length - start)
            items.append(StepItem(request, start, count, start + count == length))
            start, left = start + count, left - count
            if not left:
                plans.append(StepPlan(items))
                items, left = [], most
    return [*plans, StepPlan(items)] if items else plans
