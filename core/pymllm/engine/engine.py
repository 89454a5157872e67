"""The engine: requests in, tokens out, one step at a time. Single-threaded; a client drives it."""

from __future__ import annotations

import logging
import random
import time
from typing import Protocol

import msgspec

from pymllm.engine.admission import max_length
from pymllm.engine.kv import KVManager
from pymllm.engine.messages import EngineInfo, EngineRequest, EngineStats, FinishReason, TokenOutput
from pymllm.engine.plan import ItemResult, StepItem, StepPlan
from pymllm.engine.request import Request
from pymllm.engine.scheduler import Scheduler
from pymllm.interfaces.cache import CachePolicy
from pymllm.memory.pages import PagePool

log = logging.getLogger(__name__)

BROKEN_LOGITS = "the model's logits for this request are not numbers (NaN or infinite); the request was ended"


class StepRunner(Protocol):
    """What the engine needs of a runner (:class:`pymllm.engine.runner.Runner`)."""

    def run(self, plan: StepPlan) -> list[ItemResult]:
        """Compute a step; one result per item."""
        ...


class Engine:
    """Scheduler, KV pages and runner, joined.

    seed: seeds requests that bring no seed of their own.
    """

    def __init__(self, info: EngineInfo, runner: StepRunner, policy: CachePolicy, *, seed: int) -> None:
        self.info = info
        self._runner = runner
        self._policy = policy
        self._pool = PagePool(info.pages)
        self._kv = KVManager(self._pool, policy, info.page_size)
        self._scheduler = Scheduler(
            self._kv,
            max_batch_tokens=info.max_batch_tokens,
            max_running=info.max_running_requests,
            share_in_flight=policy.reuses,
        )
        self._requests: dict[str, Request] = {}
        self._seeds = random.Random(seed)
        self._arrivals = 0
        self._totals = EngineStats()
        self._ended: list[TokenOutput] = []

    @property
    def has_work(self) -> bool:
        """Whether a step would do something."""
        return self._scheduler.has_work or bool(self._ended)

    def submit(self, spec: EngineRequest) -> None:
        """Queue a request that passed :func:`pymllm.engine.admission.check`."""
        params = spec.sampling
        seed = params.seed if params.seed is not None else self._seeds.getrandbits(63)
        request = Request(spec, self._arrivals, seed, max_length(spec, self.info))
        self._arrivals += 1
        self._requests[spec.id] = request
        self._scheduler.add(request)

    def abort(self, request_id: str) -> None:
        """End a request; its last output comes with the next step. Unknown ids are ignored."""
        request = self._requests.get(request_id)
        if request is not None:
            self._end(request, "abort")

    def reset_cache(self) -> int:
        """Drop every cached page that is not in use; returns how many."""
        return self._kv.reset()

    def step(self) -> list[TokenOutput]:
        """Compute one step. Never raises for a request's sake: a request that fails ends with an error."""
        plan = self._scheduler.schedule()
        if plan.items:
            self._totals.total_steps += 1
            self._note_first_schedule(plan)
            for item, result in self._run(plan):
                self._settle(item, result)
        outputs, self._ended = self._ended, []
        return outputs

    def _run(self, plan: StepPlan) -> list[tuple[StepItem, ItemResult | Exception]]:
        """Run a plan; if it raises, run its items one by one so that only the guilty one fails."""
        try:
            return list(zip(plan.items, self._runner.run(plan)))
        except Exception as error:
            log.exception("a step of %d requests failed", len(plan.items))
            if len(plan.items) == 1:
                return [(plan.items[0], error)]
            return [pair for item in plan.items for pair in self._run(StepPlan([item]))]

    def _note_first_schedule(self, plan: StepPlan) -> None:
        now = time.monotonic()
        for item in plan.items:
            request = item.request
            if request.queue_seconds < 0:
                request.queue_seconds = max(0.0, now - request.spec.arrival)
                self._totals.total_prompt_tokens += request.prompt_length
                self._totals.total_cached_tokens += request.cached_tokens or 0

    def _settle(self, item: StepItem, result: ItemResult | Exception) -> None:
        """Book what a step brought for one request, and tell its client."""
        request = item.request
        if isinstance(result, Exception):
            message = f"computing this request failed: {type(result).__name__}: {result}"
            self._end(request, "error", error=message, keep=False)
            return
        if not result.valid:
            self._end(request, "error", error=BROKEN_LOGITS, keep=False)
            return
        if result.prompt_logprobs is not None:
            request.prompt_logprobs[item.start :] = result.prompt_logprobs  # again, if it was preempted
        self._scheduler.commit(item, result.token)
        if result.token is None:
            return
        self._totals.total_generated_tokens += 1
        output = self._output(request)
        output.token_ids = [result.token]
        output.logprobs = [result.logprobs] if result.logprobs is not None else None
        if result.token in request.end_tokens and request.output_length >= request.spec.sampling.min_tokens:
            output.stop_token = result.token
            self._end(request, "stop", output=output)
        elif len(request.tokens) >= request.max_length:
            self._end(request, "length", output=output)
        else:
            self._ended.append(output)

    def _output(self, request: Request) -> TokenOutput:
        """An output for a request; the first one carries what is said once."""
        output = TokenOutput(id=request.spec.id)
        if not request.announced:
            output.cached_tokens = request.cached_tokens or 0
            output.queue_seconds = max(0.0, request.queue_seconds)
            if request.spec.sampling.prompt_logprobs is not None:
                output.prompt_logprobs = [None, *request.prompt_logprobs]
            request.announced = True
        return output

    def _end(
        self,
        request: Request,
        reason: FinishReason,
        *,
        output: TokenOutput | None = None,
        error: str | None = None,
        keep: bool = True,
    ) -> None:
        self._scheduler.finish(request, keep=keep)
        del self._requests[request.spec.id]
        output = output or TokenOutput(id=request.spec.id)
        output.finish_reason, output.error = reason, error
        self._ended.append(output)

    def stats(self) -> EngineStats:
        """A snapshot of counts."""
        cached = self._policy.stats()
        totals = self._totals
        totals.running = len(self._scheduler.running)
        totals.waiting = len(self._scheduler.waiting)
        totals.pages_free = self._pool.free_count
        totals.pages_cached = cached.evictable_pages
        totals.pages_used = self._pool.size - totals.pages_free - totals.pages_cached
        totals.total_preemptions = self._scheduler.preemptions
        totals.total_evicted_pages = cached.evicted_pages
        return msgspec.structs.replace(totals)

    def check_integrity(self) -> None:
        """Raise AssertionError unless every page is accounted for."""
        self._kv.check_integrity(self._scheduler.running)
