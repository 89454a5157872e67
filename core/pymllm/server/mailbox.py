"""Calls from other threads to the event loop."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

log = logging.getLogger(__name__)


class Mailbox:
    """Makes calls on the event loop, in order: all that have come by then in one wake-up.

    Waking the loop for every token would cost more than all else that is done for it.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._calls: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._woken = False

    def post(self, call: Callable[..., None], *args: Any) -> None:
        """Make a call on the loop, soon. From any thread; after the loop was closed nothing happens."""
        self._calls.append((call, args))
        if not self._woken:
            self._woken = True
            with suppress(RuntimeError):  # the loop is closed: the server has ended
                self.loop.call_soon_threadsafe(self._make_calls)

    def _make_calls(self) -> None:
        self._woken = False  # before they are counted: whoever posts from now on wakes the loop again
        for _ in range(len(self._calls)):
            call, args = self._calls.popleft()
            try:
                call(*args)
            except Exception:
                log.exception("a call to the event loop failed")
