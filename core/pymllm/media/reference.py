"""Typed references to pictures and videos; :mod:`pymllm.media.parts` reads them from content parts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from pymllm.media.source import Source, WebUrl

Detail = Literal["auto", "low", "high"]


@dataclass(frozen=True, slots=True)
class ImageReference:
    """One picture. where: the part's place in the request, which begins every message about it.

    detail: OpenAI's wish. min_pixels, max_pixels: the size that the picture shall be brought to. The loader
    passes these three over; they are for the model's processor.
    """

    where: str
    source: Source
    detail: Detail = "auto"
    min_pixels: int | None = None
    max_pixels: int | None = None

    @property
    def items(self) -> int:
        """What it counts for in ``media.max_items_per_request``."""
        return 1


@dataclass(frozen=True, slots=True)
class VideoReference:
    """One video. where, min_pixels, max_pixels (of each frame): as of a picture.

    source: one file, or its frames. fps: frames to take for each second; of a list of frames, how many of them
    are shown in a second. num_frames: frames to take in all, or fewer if there are not so many; at most one of the
    two is set, and of a list of frames both may be. min_frames: fewest frames that a rate (not num_frames) comes
    down to, if the video has them.
    """

    where: str
    source: Source | tuple[Source, ...]
    fps: float | None = None
    num_frames: int | None = None
    min_frames: int = 1
    min_pixels: int | None = None
    max_pixels: int | None = None

    @property
    def items(self) -> int:
        """What it counts for in ``media.max_items_per_request``: each frame that must be fetched, at least 1."""
        if not isinstance(self.source, tuple):
            return 1
        return max(1, sum(isinstance(frame, WebUrl) for frame in self.source))


Reference: TypeAlias = ImageReference | VideoReference
