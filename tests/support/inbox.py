"""Receives what an engine client delivers, and lets a test wait for it."""

from __future__ import annotations

import threading
from collections.abc import Callable

from pymllm.engine.messages import TokenOutput

SECONDS = 60


class Inbox:
    """All outputs that arrived, by request. ``deliver`` is the receiver to submit with."""

    def __init__(self) -> None:
        self._outputs: dict[str, list[TokenOutput]] = {}
        self._news = threading.Condition(threading.RLock())

    def deliver(self, output: TokenOutput) -> None:
        with self._news:
            self._outputs.setdefault(output.id, []).append(output)
            self._news.notify_all()

    def of(self, request_id: str) -> list[TokenOutput]:
        """The outputs of a request so far."""
        with self._news:
            return list(self._outputs.get(request_id, ()))

    def tokens(self, request_id: str) -> list[int]:
        return [token for output in self.of(request_id) for token in output.token_ids]

    def reasons(self, request_id: str) -> list[str]:
        """The finish reasons of a request so far: one, once it has ended."""
        return [output.finish_reason for output in self.of(request_id) if output.finish_reason is not None]

    def wait(self, request_id: str, seconds: float = SECONDS) -> TokenOutput:
        """The last output of a request, once it has arrived."""
        self._wait(lambda: self.reasons(request_id), seconds)
        return self.of(request_id)[-1]

    def wait_for_tokens(self, request_id: str, count: int) -> None:
        self._wait(lambda: len(self.tokens(request_id)) >= count, SECONDS)

    def _wait(self, arrived: Callable[[], object], seconds: float) -> None:
        with self._news:
            assert self._news.wait_for(arrived, seconds), f"nothing arrived in {seconds} s: {self._outputs}"
