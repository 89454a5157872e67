"""The loader for callers without an event loop: the offline API."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

from pymllm.config import MediaConfig
from pymllm.media.loader import MediaLoader
from pymllm.media.picture import Media
from pymllm.media.reference import Reference
from pymllm.media.web import Web


class BlockingLoader:
    """A :class:`MediaLoader` on an event loop in a thread of its own. May be called from any thread, also from one
    that runs a loop (a notebook's)."""

    def __init__(self, config: MediaConfig, *, web: Web | None = None) -> None:
        """As MediaLoader."""
        self._loader = MediaLoader(config, web=web)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="pymllm-media-loop", daemon=True)
        self._thread.start()

    def load(self, references: Sequence[Reference]) -> list[Media]:
        """See :meth:`MediaLoader.load`. An interrupt (Ctrl-C) cancels it."""
        future = asyncio.run_coroutine_threadsafe(self._loader.load(references), self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def close(self) -> None:
        """End the thread. What is still loading is cancelled. Idempotent."""
        if self._loop.is_closed():
            return
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loader.close()

    def _run(self) -> None:
        try:
            self._loop.run_forever()
            self._loop.run_until_complete(_cancel_all())
        finally:
            self._loop.close()


async def _cancel_all() -> None:
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)
