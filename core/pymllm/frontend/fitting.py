"""Loaded pictures and videos, resized so that the engine can encode them."""

from __future__ import annotations

from collections.abc import Callable

from pymllm.errors import RequestError
from pymllm.interfaces import MediaProcessor, ProcessedMedia
from pymllm.media import ImageReference, Media, Picture, Reference, Video

Resize = Callable[[int | None, int | None], ProcessedMedia]
"""(min_pixels, max_pixels) of the whole medium -> the medium, resized within them."""


def fitted(processor: MediaProcessor, reference: Reference, medium: Media, most: int) -> ProcessedMedia:
    """A medium as its reference asks for it, with at most ``most`` tokens: with fewer pixels where it would have more.

    Raises RequestError that begins with the reference's ``where``.
    """
    try:
        if isinstance(medium, Picture):
            return _fit(_image(processor, reference, medium), reference, 1, most)
        return _fit(_video(processor, medium), reference, len(medium.frames), most)
    except RequestError as error:
        raise RequestError(f"{reference.where}: {error}", reference.where) from error


def _image(processor: MediaProcessor, reference: Reference, picture: Picture) -> Resize:
    detail = reference.detail if isinstance(reference, ImageReference) else "auto"
    return lambda low, high: processor.image(picture.pixels, min_pixels=low, max_pixels=high, detail=detail)


def _video(processor: MediaProcessor, video: Video) -> Resize:
    return lambda low, high: processor.video(video.frames, video.timestamps, min_pixels=low, max_pixels=high)


def _fit(resize: Resize, reference: Reference, frames: int, most: int) -> ProcessedMedia:
    """frames: a reference bounds each, a processor all together."""
    low = None if reference.min_pixels is None else reference.min_pixels * frames
    high = None if reference.max_pixels is None else reference.max_pixels * frames
    found = resize(low, high)
    while found.tokens > most:
        smaller = resize(low, max(1, found.pixels.size // 3 * most // found.tokens))
        if smaller.tokens >= found.tokens:
            raise RequestError(
                f"it becomes {smaller.tokens} tokens at least, and this server takes at most {most} of one {found.kind}"
            )
        found = smaller
    return found
