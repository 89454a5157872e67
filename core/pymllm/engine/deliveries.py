"""Hands outputs to whoever waits for them, and makes sure that everybody gets exactly one last output."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from pymllm.engine.client import Deliver
from pymllm.engine.messages import TokenOutput
from pymllm.errors import EngineDeadError, PymllmError, RequestError

log = logging.getLogger(__name__)


class Deliveries:
    """Open requests and their receivers, and open questions. All methods may be called from any thread."""

    def __init__(self) -> None:
        self._receivers: dict[str, Deliver] = {}
        self._questions: deque[Future[Any]] = deque()
        self._lock = threading.Lock()
        self._error: EngineDeadError | None = None

    @property
    def accepting(self) -> bool:
        """False after ``close``."""
        return self._error is None

    @property
    def any_open(self) -> bool:
        """Whether somebody waits for an output."""
        return bool(self._receivers)

    def open(self, request_id: str, deliver: Deliver) -> None:
        """Register a receiver. Raises EngineDeadError after ``close``, RequestError for an id in use."""
        with self._lock:
            self._raise_if_closed()
            if request_id in self._receivers:
                raise RequestError(f"request id '{request_id}' is in use", "request_id")
            self._receivers[request_id] = deliver

    def deliver(self, outputs: list[TokenOutput]) -> None:
        """Pass outputs on, in order. A receiver that raises loses its output, nobody else's."""
        with self._lock:
            receivers = [self._receiver(output) for output in outputs]
        for receiver, output in zip(receivers, outputs):
            if receiver is not None:
                _call(receiver, output)

    def _receiver(self, output: TokenOutput) -> Deliver | None:
        if output.finish_reason is None:
            return self._receivers.get(output.id)
        return self._receivers.pop(output.id, None)

    def ask(self, send: Callable[[], None]) -> Future[Any]:
        """Put a question to the engine, by ``send``; questions are answered in order. Raises EngineDeadError after
        ``close``."""
        with self._lock:  # until it is sent: the order of questions is that of their sending
            self._raise_if_closed()
            question: Future[Any] = Future()
            self._questions.append(question)
            send()
            return question

    def answer(self, value: object) -> None:
        """Answer the oldest question."""
        self._oldest_question().set_result(value)

    def refuse(self, error: PymllmError) -> None:
        """Let whoever asked the oldest question raise an error."""
        self._oldest_question().set_exception(error)

    def _oldest_question(self) -> Future[Any]:
        with self._lock:
            return self._questions.popleft()

    def close(self, error: EngineDeadError, *, aborted: bool) -> None:
        """End every open request: as aborted if the engine was closed, with the error if it failed. Open
        questions raise it."""
        with self._lock:
            self._error = self._error or error
            receivers, self._receivers = self._receivers, {}
            questions, self._questions = self._questions, deque()
        for request_id, receiver in receivers.items():
            output = TokenOutput(id=request_id, finish_reason="abort" if aborted else "error")
            output.error = None if aborted else str(error)
            _call(receiver, output)
        for question in questions:
            question.set_exception(EngineDeadError(str(error)))

    def _raise_if_closed(self) -> None:
        if self._error is not None:
            raise EngineDeadError(str(self._error))


def _call(receiver: Deliver, output: TokenOutput) -> None:
    try:
        receiver(output)
    except Exception:
        log.exception("the receiver of request %s failed", output.id)
