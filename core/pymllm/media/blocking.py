"""The loader for callers without an event loop."""

from __future__ import annotations

from collections.abc import Sequence

from pymllm.config import MediaConfig
from pymllm.media.loader import MediaLoader
from pymllm.media.loop_thread import LoopThread
from pymllm.media.picture import Media
from pymllm.media.reference import Reference
from pymllm.media.web import Web


class BlockingLoader:
    """A :class:`MediaLoader` on an event loop of its own."""

    def __init__(self, config: MediaConfig, *, web: Web | None = None) -> None:
        """As MediaLoader."""
        self._loader = MediaLoader(config, web=web)
        self._loop = LoopThread("pymllm-media-loop")

    def load(self, references: Sequence[Reference]) -> list[Media]:
        """See :meth:`MediaLoader.load`. An interrupt (Ctrl-C) cancels it."""
        return self._loop.run(self._loader.load(references))

    def close(self) -> None:
        """End the thread. What is still loading is cancelled. Idempotent."""
        self._loop.close()
        self._loader.close()
