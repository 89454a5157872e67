"""An engine in a thread of this process: for offline use, CPUs, debugging, and the smallest memory."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TypeVar

from pymllm.engine.admission import check
from pymllm.engine.client import Deliver, EngineClient
from pymllm.engine.deliveries import Deliveries
from pymllm.engine.engine import Engine
from pymllm.engine.messages import EngineInfo, EngineRequest, EngineStats, Profile, ProfileRequest
from pymllm.engine.profiler import StepProfiler
from pymllm.errors import EngineDeadError, PymllmError

log = logging.getLogger(__name__)

T = TypeVar("T")

GATHER_SECONDS = 0.05
"""How long the engine waits for requests that are submitted together."""


class ThreadClient(EngineClient):
    """Builds an engine on a new thread and steps it there until ``close``.

    build: makes the engine; it runs on the engine's thread, and what it raises the constructor raises.
    """

    def __init__(self, build: Callable[[], Engine]) -> None:
        self._commands: queue.SimpleQueue[Callable[[Engine], None] | None] = queue.SimpleQueue()
        self._deliveries = Deliveries()
        self._stats = EngineStats()
        started: Future[EngineInfo] = Future()
        self._thread = threading.Thread(target=self._main, args=(build, started), name="pymllm-engine", daemon=True)
        self._thread.start()
        try:
            self.info = started.result()
        except BaseException:  # also Ctrl-C, after which the thread ends as soon as it has built the engine
            self._commands.put(None)
            raise

    def submit(self, request: EngineRequest, deliver: Deliver) -> None:
        check(request, self.info)
        self._deliveries.open(request.id, deliver)
        self._commands.put(lambda engine: engine.submit(request))

    @contextmanager
    def together(self) -> Iterator[None]:
        gathered = threading.Event()

        def wait(engine: Engine) -> None:
            gathered.wait(GATHER_SECONDS)

        self._commands.put(wait)
        try:
            yield
        finally:
            gathered.set()

    def abort(self, request_id: str) -> None:
        self._commands.put(lambda engine: engine.abort(request_id))

    def stats(self) -> EngineStats:
        return self._stats

    def reset_cache(self) -> int:
        return int(self._ask(self._reset_cache))

    def _reset_cache(self, engine: Engine) -> int:
        dropped = engine.reset_cache()
        self._stats = engine.stats()
        return dropped

    def start_profile(self, wanted: ProfileRequest) -> Profile:
        return self._ask(lambda engine: self._profiler.start(wanted))

    def stop_profile(self) -> Profile:
        return self._ask(lambda engine: self._profiler.stop())

    def _ask(self, question: Callable[[Engine], T]) -> T:
        """The answer of the engine's thread."""

        def carry_out(engine: Engine) -> None:
            try:
                self._deliveries.answer(question(engine))
            except PymllmError as error:
                self._deliveries.refuse(error)

        answer: Future[T] = self._deliveries.ask(lambda: self._commands.put(carry_out))
        return answer.result()

    @property
    def alive(self) -> bool:
        return self._deliveries.accepting

    def close(self) -> None:
        self._commands.put(None)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _main(self, build: Callable[[], Engine], started: Future[EngineInfo]) -> None:
        try:
            engine = build()
            self._stats = engine.stats()
        except BaseException as error:
            started.set_exception(error)
            return
        self._profiler = StepProfiler(engine.info.device)
        started.set_result(engine.info)
        reason = "the engine was closed"
        try:
            while self._take_commands(engine):
                outputs = engine.step()
                self._stats = engine.stats()
                self._deliveries.deliver(outputs)
                self._profiler.stepped()
        except BaseException as error:
            log.exception("the engine failed")
            reason = f"the engine failed: {type(error).__name__}: {error}"
        finally:
            self._profiler.close()
            self._deliveries.close(EngineDeadError(reason), aborted=reason == "the engine was closed")

    def _take_commands(self, engine: Engine) -> bool:
        """Carry out what was asked meanwhile; waits while there is nothing to compute. False: stop."""
        while True:
            try:
                command = self._commands.get(block=not engine.has_work)
            except queue.Empty:
                return True
            if command is None:
                return False
            command(engine)
            self._stats = engine.stats()
