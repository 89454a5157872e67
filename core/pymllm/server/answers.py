"""The answers of one HTTP request while they are made: engine threads on one side, the event loop on the other."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from functools import partial

from pymllm.errors import EngineDeadError
from pymllm.frontend.frontend import Frontend, Generation
from pymllm.frontend.generation import Delta
from pymllm.sampling import SamplingParams
from pymllm.server.metrics import AnswerClock, Metrics
from pymllm.server.protocol.errors import ApiError

Arrival = tuple[int, Delta]
"""(index of the prompt, news of one of its answers)"""


class Answers:
    """All answers (prompts times n) of one HTTP request.

    Lives on the event loop; only ``_deliver`` runs elsewhere. Iterating yields the deltas in the order they
    came, until every answer has ended. ``close`` may be called in any phase and any number of times: what
    is still open is then aborted, once.
    """

    def __init__(self, id: str, count: int, metrics: Metrics, on_settled: Callable[[str], None]) -> None:
        """count: answers asked for. on_settled: called once, when the engine holds nothing of it any more."""
        self.id = id
        self.count = count
        self._metrics = metrics
        self._on_settled = on_settled
        self._arrived_at = time.monotonic()
        self._queue: asyncio.Queue[Arrival] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()
        self._generations: list[Generation] = []
        self._clocks: dict[tuple[int, int], AnswerClock] = {}
        self._expected = 0
        self._finished = 0
        self._frontend: Frontend | None = None
        self._complete = self._closed = self._settled = False
        self._abort_wanted = self._abort_sent = False

    async def start(
        self,
        prompts: Sequence[list[int]],
        params: Sequence[SamplingParams],
        frontend: Frontend,
        *,
        priority: int = 0,
        namespace: str = "",
    ) -> None:
        """Hand the tokenized prompts to the engine. Raises RequestError or EngineDeadError; the caller closes."""
        self._frontend = frontend
        for index, (token_ids, sampling) in enumerate(zip(prompts, params)):
            self._start_one(index, token_ids, sampling, priority, namespace)
            if index % 16 == 15:  # a large batch must not hold up the streams of others
                await asyncio.sleep(0)
        self._complete = True
        if self._abort_wanted:
            self._abort_open()

    def _start_one(self, index: int, ids: list[int], params: SamplingParams, priority: int, namespace: str) -> None:
        assert self._frontend is not None
        generation = self._frontend.start(
            ids,
            params,
            partial(self._deliver, index),
            request_id=f"{self.id}-{index}",
            priority=priority,
            namespace=namespace,
        )
        self._generations.append(generation)
        self._expected += params.n

    async def __aiter__(self) -> AsyncIterator[Arrival]:
        ended = 0
        while ended < self._expected:
            arrival = await self._queue.get()
            delta = arrival[1]
            if delta.error is not None:
                raise self._failure(delta.error)
            ended += delta.finish_reason is not None
            yield arrival

    def _failure(self, sentence: str) -> ApiError:
        if self._frontend is not None and not self._frontend.client.alive:
            return ApiError(503, sentence, code="engine_dead")
        return ApiError(500, sentence)

    def abort(self) -> None:
        """End all answers with finish_reason "abort"; whoever iterates still gets the last deltas."""
        self._abort_wanted = True
        if self._complete:
            self._abort_open()

    def close(self) -> None:
        """Nobody listens any more: abort what is open."""
        if self._closed:
            return
        self._closed = True
        self._abort_open()
        self._settle()

    def _abort_open(self) -> None:
        if self._abort_sent or self._finished >= self._expected:
            return
        self._abort_sent = True
        for generation in self._generations:
            with suppress(EngineDeadError):  # then the client ends everything with an error
                generation.abort()

    def _deliver(self, prompt: int, delta: Delta) -> None:
        with suppress(RuntimeError):  # the loop is closed: the server has ended
            self._loop.call_soon_threadsafe(self._arrive, prompt, delta)

    def _arrive(self, prompt: int, delta: Delta) -> None:
        clock = self._clocks.get((prompt, delta.index))
        if clock is None:
            clock = self._clocks[prompt, delta.index] = AnswerClock(self._metrics, self._arrived_at)
        clock.observe(delta)
        self._finished += delta.finish_reason is not None
        if not self._closed:
            self._queue.put_nowait((prompt, delta))
        self._settle()

    def _settle(self) -> None:
        over = (self._complete or self._closed) and self._finished >= self._expected
        if over and not self._settled:
            self._settled = True
            self._on_settled(self.id)
