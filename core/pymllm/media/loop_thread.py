"""An event loop for callers without one."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class LoopThread:
    """An event loop in a thread of its own, started when it is first needed. May be called from any thread, also
    from one that runs a loop (a notebook's)."""

    def __init__(self, name: str) -> None:
        """name: of the thread."""
        self._name = name
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of a coroutine. An interrupt (Ctrl-C) cancels it."""
        future = asyncio.run_coroutine_threadsafe(work, self._started())
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def close(self) -> None:
        """End the thread. What still runs is cancelled. Idempotent."""
        with self._lock:
            loop, thread = self._loop, self._thread
            if loop is None or thread is None or loop.is_closed():
                return
            loop.call_soon_threadsafe(loop.stop)
            thread.join()

    def _started(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=_run, args=(self._loop,), name=self._name, daemon=True)
                self._thread.start()
            return self._loop


def _run(loop: asyncio.AbstractEventLoop) -> None:
    try:
        loop.run_forever()
        loop.run_until_complete(_cancel_all())
    finally:
        loop.close()


async def _cancel_all() -> None:
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)
