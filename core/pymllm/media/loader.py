"""References in, pixels out: fetching on the event loop, everything else in a bounded pool of threads."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from pymllm.config import MediaConfig
from pymllm.errors import PluginError, RequestError
from pymllm.media.budget import Budget
from pymllm.media.data_url import IMAGE_TYPES, VIDEO_TYPES, read_data_url
from pymllm.media.files import Folders
from pymllm.media.picture import Media, Picture, Video
from pymllm.media.reference import ImageReference, Reference, VideoReference
from pymllm.media.source import DataUrl, Decoded, Encoded, LocalFile, Source, WebUrl
from pymllm.media.web import Web

try:
    from pymllm.media import pictures, videos
except ImportError as missing:
    if missing.name != "PIL":
        raise
    raise PluginError("pictures and videos need Pillow: pip install 'pymllm[vision]'") from missing

T = TypeVar("T")


class MediaLoader:
    """Loads what requests refer to. One object serves all requests of one event loop.

    Threads without a loop use :class:`~pymllm.media.blocking.BlockingLoader`.
    """

    def __init__(self, config: MediaConfig, *, web: Web | None = None) -> None:
        """Raises ConfigError for ``allowed_local_folders`` that are none. web: what fetches URLs; closed with the
        loader."""
        self._config = config
        self._folders = Folders(config.allowed_local_folders)
        self._web = web or Web(config)
        self._threads = ThreadPoolExecutor(config.decode_threads, "pymllm-media")

    async def load(self, references: Sequence[Reference]) -> list[Media]:
        """What the references of one request refer to, in their order: a Picture for each ImageReference, a Video
        for each VideoReference.

        Raises RequestError that begins with the ``where`` of a reference that fails, with ``where`` as its field;
        what else was under way is then cancelled, as it is when this call is cancelled.
        """
        items = sum(reference.items for reference in references)
        if items > self._config.max_items_per_request:
            limit = f"at most {self._config.max_items_per_request} are taken (media.max_items_per_request)"
            raise RequestError(f"the request holds {items} pictures and videos; {limit}", references[-1].where)
        budget = Budget(self._config)
        try:
            return await _all(self._load(reference, budget) for reference in references)
        finally:
            budget.cancel()

    def close(self) -> None:
        """Let go of the threads. What is still loading fails. Idempotent."""
        self._web.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _load(self, reference: Reference, budget: Budget) -> Media:
        try:
            if isinstance(reference, ImageReference):
                return await self._picture(reference.source, budget)
            if isinstance(reference.source, tuple):
                return await self._frames(reference, reference.source, budget)
            return await self._video(reference, reference.source, budget)
        except RequestError as error:
            raise RequestError(f"{reference.where}: {error}", reference.where) from error

    async def _picture(self, source: Source, budget: Budget) -> Picture:
        if isinstance(source, Decoded):
            return await self._in_thread(lambda: pictures.from_value(source.value, self._config, budget))
        if isinstance(source, WebUrl):
            data = await self._web.fetch(source.url, budget)
            return await self._in_thread(lambda: pictures.decode_picture(data, self._config, budget))
        return await self._in_thread(
            lambda: pictures.decode_picture(self._read(source, IMAGE_TYPES, budget), self._config, budget)
        )

    async def _video(self, video: VideoReference, source: Source, budget: Budget) -> Video:
        if isinstance(source, Decoded):
            raise RequestError("it is one picture, not a video; give a list of frames or an array [F, H, W, 3]")
        if isinstance(source, WebUrl):
            data = await self._web.fetch(source.url, budget)
            return await self._in_thread(lambda: videos.decode_video(data, video, self._config, budget))
        return await self._in_thread(
            lambda: videos.decode_video(self._read(source, VIDEO_TYPES, budget), video, self._config, budget)
        )

    async def _frames(self, video: VideoReference, sources: Sequence[Source], budget: Budget) -> Video:
        indices, duration = videos.taken_frames(video, len(sources), self._config)
        frames = await _all(self._frame(index, sources[index], budget) for index in indices)
        return await self._in_thread(lambda: videos.join_frames(frames, indices, len(sources), duration))

    async def _frame(self, index: int, source: Source, budget: Budget) -> Picture:
        try:
            return await self._picture(source, budget)
        except RequestError as error:
            raise RequestError(f"frame {index}: {error}") from error

    def _read(self, source: DataUrl | LocalFile | Encoded, types: frozenset[str], budget: Budget) -> bytes:
        most = self._config.max_bytes
        if isinstance(source, DataUrl):
            data = read_data_url(source.url, types, most)
        elif isinstance(source, LocalFile):
            data = self._folders.read(source, most)
        else:
            data = source.data
            if len(data) > most:
                raise RequestError(f"the file is larger than {most} bytes (media.max_bytes)")
        budget.take_bytes(len(data))
        return data

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)


async def _all(works: Iterable[Awaitable[T]]) -> list[T]:
    """All results. When one fails, or this is cancelled, the others are cancelled and waited for first."""
    tasks = [asyncio.ensure_future(work) for work in works]
    if not tasks:
        return []
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        return [task.result() for task in tasks if task in done]  # raises what one of them raised
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
