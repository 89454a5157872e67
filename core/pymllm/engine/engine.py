"""The engine: requests in, tokens out, one step at a time. Single-threaded; a client drives it."""

from __future__ import annotations

import logging
import random
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

import msgspec

from pymllm.engine.admission import max_length
from pymllm.engine.kv import KVManager
from pymllm.engine.messages import EngineInfo, EngineRequest, EngineStats, FinishReason, TokenOutput
from pymllm.engine.plan import ItemResult, StepItem, StepPlan
from pymllm.engine.request import Request
from pymllm.engine.scheduler import Scheduler
from pymllm.errors import EngineDeadError
from pymllm.interfaces.cache import CachePolicy
from pymllm.memory.pages import PagePool

log = logging.getLogger(__name__)

BROKEN_LOGITS = "the model's logits for this request are not numbers (NaN or infinite); the request was ended"


class StepRunner(Protocol):
    """What the engine needs of a runner (:class:`pymllm.engine.runner.Runner`)."""

    def launch(self, plan: StepPlan) -> Callable[[], list[ItemResult]]:
        """Start a step. What it returns waits for the step's end and gives one result per item. A step may
        be launched before the last one was waited for; the tokens it continues from may then be known to
        the runner alone."""
        ...

    def healthy(self) -> bool:
        """After a step failed: whether others can still be computed (a CUDA device may be lost for good)."""
        ...


class Engine:
    """Scheduler, KV pages and runner, joined.

    seed: seeds requests that bring no seed of their own.
    overlap: launch a step before the results of the last one are read. knows_media: see the scheduler.
    """

    def __init__(
        self,
        info: EngineInfo,
        runner: StepRunner,
        policy: CachePolicy,
        *,
        seed: int,
        overlap: bool = False,
        knows_media: Callable[[bytes], bool] = lambda digest: False,
    ) -> None:
        self.info = info
        self._depth = 2 if overlap else 1
        self._in_flight: deque[tuple[StepPlan, Callable[[], list[ItemResult]]]] = deque()
        self._runner = runner
        self._policy = policy
        self._pool = PagePool(info.pages)
        self._kv = KVManager(self._pool, policy, info.page_size)
        self._scheduler = Scheduler(
            self._kv,
            max_batch_tokens=info.max_batch_tokens,
            max_running=info.max_running_requests,
            share_in_flight=policy.reuses,
            knows_media=knows_media,
        )
        self._requests: dict[str, Request] = {}
        self._seeds = random.Random(seed)
        self._arrivals = 0
        self._totals = EngineStats()
        self._ended: list[TokenOutput] = []

    @property
    def has_work(self) -> bool:
        """Whether a step would do something."""
        return self._scheduler.has_work or bool(self._ended or self._in_flight)

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
        """Launch a step, and book the oldest one in flight when there are as many as may be. Never raises for
        a request's sake: a request that fails ends with an error. Raises EngineDeadError when the device is lost."""
        plan = self._scheduler.schedule()
        if plan.items:
            self._totals.total_steps += 1
            self._note_first_schedule(plan)
            self._launch(plan)
        if self._in_flight and (len(self._in_flight) >= self._depth or not plan.items):
            self._book(*self._in_flight.popleft())
        outputs, self._ended = self._ended, []
        return outputs

    def _launch(self, plan: StepPlan) -> None:
        try:
            self._in_flight.append((plan, self._runner.launch(plan)))
        except Exception:
            log.exception("a step of %d requests could not be started", len(plan.items))
            self._book_all()
            self._one_by_one([plan])

    def _book(self, plan: StepPlan, wait: Callable[[], list[ItemResult]]) -> None:
        """Wait for a step and book its results. If it failed, the steps in flight are done again, request by
        request, so that only the guilty one ends."""
        try:
            results = wait()
        except Exception:
            log.exception("a step of %d requests failed", len(plan.items))
            self._one_by_one([plan, *self._abandon()])
            return
        for item, result in zip(plan.items, results):
            if item.current:
                self._settle(item, result)

    def _book_all(self) -> None:
        while self._in_flight:
            self._book(*self._in_flight.popleft())

    def _abandon(self) -> list[StepPlan]:
        """The plans in flight, waited for and their results thrown away: they built on a step that failed."""
        plans = []
        while self._in_flight:
            plan, wait = self._in_flight.popleft()
            with suppress(Exception):
                wait()
            plans.append(plan)
        return plans

    def _one_by_one(self, plans: list[StepPlan]) -> None:
        """Run the items of plans alone; running an item again is safe, since KV is written to the same slots.
        Raises EngineDeadError if nothing can be run any more."""
        if not self._runner.healthy():
            raise EngineDeadError("the device failed and computes nothing any more; the engine must be restarted")
        for item in [item for plan in plans for item in plan.items]:
            if not item.current:
                continue
            try:
                [result] = self._runner.launch(StepPlan([item]))()
            except Exception as error:
                message = f"computing this request failed: {type(error).__name__}: {error}"
                self._end(item.request, "error", error=message, keep=False)
            else:
                self._settle(item, result)

    def _note_first_schedule(self, plan: StepPlan) -> None:
        now = time.monotonic()
        for item in plan.items:
            request = item.request
            if request.queue_seconds < 0:
                request.queue_seconds = max(0.0, now - request.spec.arrival)
                self._totals.total_prompt_tokens += request.prompt_length
                self._totals.total_cached_tokens += request.cached_tokens or 0

    def _settle(self, item: StepItem, result: ItemResult) -> None:
        """Book what a step brought for one request, and tell its client."""
        request = item.request
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
