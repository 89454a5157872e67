"""From a prompt with placeholders and references to one that the engine can run: load, resize, place."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from pymllm.config import MediaConfig
from pymllm.engine import messages
from pymllm.errors import RequestError
from pymllm.frontend.fitting import fitted
from pymllm.frontend.generation import PlacedPrompt, UnplacedPrompt
from pymllm.interfaces import MediaProcessor, Placed, ProcessedMedia
from pymllm.media import Media, Reference
from pymllm.media.loader import MediaLoader
from pymllm.media.web import Web

T = TypeVar("T")


class MediaPlacer:
    """Serves all requests of one event loop, and holds the pixels of ``media.max_concurrent_requests`` at most."""

    def __init__(
        self, processor: MediaProcessor, config: MediaConfig, max_tokens: int, *, web: Web | None = None
    ) -> None:
        """max_tokens: most that one medium may have (EngineInfo.max_media_tokens); larger ones get fewer pixels.
        web: as of MediaLoader, which says what is raised."""
        self._processor = processor
        self._max_tokens = max_tokens
        self._loader = MediaLoader(config, web=web)
        self._threads = ThreadPoolExecutor(config.decode_threads, "pymllm-resize")
        self._slots = asyncio.Semaphore(config.max_concurrent_requests)

    async def place(self, prompt: UnplacedPrompt) -> PlacedPrompt:
        """The prompt with its placeholders expanded. Equal media are processed, and stand among the inputs, once.

        Raises RequestError that begins with the ``where`` of a reference that fails, or says how placeholders and
        references differ in number. When this is cancelled, what is under way is cancelled too.
        """
        async with self._slots:
            media = await self._loader.load(prompt.references)
            digests = [medium.digest for medium in media]
            processed = await self._process(prompt.references, media)
            return await self._in_thread(partial(_place, self._processor, prompt.token_ids, digests, processed))

    def check_text(self, token_ids: Sequence[int]) -> None:
        """Raises RequestError for a prompt without media that holds placeholders all the same."""
        _placed(self._processor, token_ids, [])

    def close(self) -> None:
        """Let go of the threads. What is still under way fails. Idempotent."""
        self._loader.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _process(self, references: Sequence[Reference], media: Sequence[Media]) -> list[ProcessedMedia]:
        tasks: dict[object, asyncio.Future[ProcessedMedia]] = {}
        wanted = []
        for reference, medium in zip(references, media):
            detail = getattr(reference, "detail", None)
            key = (medium.digest, detail, reference.min_pixels, reference.max_pixels)
            if key not in tasks:
                work = partial(fitted, self._processor, reference, medium, self._max_tokens)
                tasks[key] = asyncio.ensure_future(self._in_thread(work))
            wanted.append(tasks[key])
        try:
            return await asyncio.gather(*wanted)
        finally:
            for task in tasks.values():
                task.cancel()

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)


def _place(
    processor: MediaProcessor, token_ids: Sequence[int], digests: Sequence[bytes], media: Sequence[ProcessedMedia]
) -> PlacedPrompt:
    """digests: of the media's content."""
    placed = _placed(processor, token_ids, media)
    keys = [digest + medium.settings for digest, medium in zip(digests, media)]
    distinct = dict(zip(keys, media))
    items = {key: item for item, key in enumerate(distinct)}
    runs = []
    for run in placed.runs:
        key = keys[run.media]
        runs.append(messages.Media(run.start, run.length, run.span(key).digest, items[key], run.first))
    return PlacedPrompt(
        placed.token_ids,
        runs,
        [_input(key, medium) for key, medium in distinct.items()],
        b"" if placed.positions is None else placed.positions.astype("<i4", copy=False).tobytes(),
        placed.position_delta,
    )


def _placed(processor: MediaProcessor, token_ids: Sequence[int], media: Sequence[ProcessedMedia]) -> Placed:
    try:
        return processor.place(token_ids, media)
    except RequestError as error:
        raise RequestError(str(error), error.field or "prompt") from error


def _input(digest: bytes, medium: ProcessedMedia) -> messages.MediaInput:
    frames, height, width, channels = medium.pixels.shape
    return messages.MediaInput(
        medium.kind, digest, medium.grid, (frames, height, width, channels), medium.pixels.tobytes(), medium.tokens
    )
