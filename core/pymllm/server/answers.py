"""The answers of one HTTP request while they are made: engine threads on one side, the event loop on the other."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from functools import partial

from pymllm.errors import EngineDeadError
from pymllm.frontend.frontend import Frontend, Generation
from pymllm.frontend.generation import Delta, PlacedPrompt
from pymllm.sampling import SamplingParams
from pymllm.server.mailbox import Mailbox
from pymllm.server.metrics import AnswerClock, Metrics
from pymllm.server.protocol.errors import ApiError

Arrival = tuple[int, Delta]
"""(index of the prompt, news of one of its answers)"""


class Answers:
    """All answers (prompts times n) of one HTTP request.

    Lives on the event loop; deltas come through its mailbox. ``close`` may be called in any phase and any
    number of times: what is still open is then aborted, once.
    """

    def __init__(
        self, id: str, count: int, metrics: Metrics, mailbox: Mailbox, on_settled: Callable[[str], None]
    ) -> None:
        """count: answers asked for. mailbox: of the event loop. on_settled: called once, when the engine holds
        nothing of it any more."""
        self.id = id
        self.count = count
        self._metrics = metrics
        self._on_settled = on_settled
        self._arrived_at = time.monotonic()
        self._mailbox = mailbox
        self._reader: asyncio.Future[None] | None = None
        self._unread: dict[tuple[int, int], Delta] = {}
        self._error: str | None = None
        self._generations: list[Generation] = []
        self._clocks: dict[tuple[int, int], AnswerClock] = {}
        self._expected = 0
        self._finished = 0
        self._frontend: Frontend | None = None
        self._complete = self._closed = self._settled = False
        self._abort_wanted = self._abort_sent = False

    async def start(
        self,
        prompts: Sequence[list[int] | PlacedPrompt],
        params: Sequence[SamplingParams],
        frontend: Frontend,
        *,
        priority: int = 0,
        namespace: str = "",
    ) -> None:
        """Hand the tokenized prompts to the engine. Raises RequestError or EngineDeadError; the caller closes."""
        self._frontend = frontend
        for index, (prompt, sampling) in enumerate(zip(prompts, params)):
            self._start_one(index, prompt, sampling, priority, namespace)
            if index % 16 == 15:  # a large batch must not hold up the streams of others
                await asyncio.sleep(0)
        self._complete = True
        if self._abort_wanted:
            self._abort_open()
        self._settle()

    def _start_one(
        self, index: int, prompt: list[int] | PlacedPrompt, params: SamplingParams, priority: int, namespace: str
    ) -> None:
        assert self._frontend is not None
        generation = self._frontend.start(
            prompt,
            params,
            partial(self._mailbox.post, self._arrive, index),  # on the engine client's thread
            request_id=f"{self.id}-{index}",
            priority=priority,
            namespace=namespace,
        )
        self._generations.append(generation)
        self._expected += params.n

    async def batches(self) -> AsyncIterator[list[Arrival]]:
        """What has come since the last time, one delta for each answer that has news, until all have ended. Whoever
        reads slowly gets several tokens in a delta. Raises ApiError once an answer ended with an error."""
        ended = 0
        while ended < self._expected:
            if not self._unread and self._error is None:
                self._reader = self._mailbox.loop.create_future()
                await self._reader
            unread, self._unread = self._unread, {}
            arrivals = []
            for (prompt, _), delta in unread.items():
                arrivals.append((prompt, delta))
                ended += delta.finish_reason is not None
            if arrivals:
                yield arrivals
            if self._error is not None:
                raise self._failure(self._error)

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

    def _arrive(self, prompt: int, delta: Delta) -> None:
        key = (prompt, delta.index)
        clock = self._clocks.get(key)
        if clock is None:
            clock = self._clocks[key] = AnswerClock(self._metrics, self._arrived_at)
        clock.observe(delta)
        if not self._closed:
            self._keep(key, delta)
        if delta.finish_reason is not None:
            self._finished += 1
            self._settle()

    def _keep(self, key: tuple[int, int], delta: Delta) -> None:
        """Keep news until they are read."""
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)
        if delta.error is not None:
            self._error = self._error or delta.error
        elif key in self._unread:
            self._unread[key].absorb(delta)
        else:
            self._unread[key] = delta

    def _settle(self) -> None:
        over = (self._complete or self._closed) and self._finished >= self._expected
        if over and not self._settled:
            self._settled = True
            self._on_settled(self.id)
