"""Prompts with pictures and videos, for tests that run a model without an engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pymllm.interfaces import MediaItem, MediaProcessor, MediaRows, Placed, ProcessedMedia
from pymllm.testing.batch import Chunk
from pymllm.testing.harness import Harness


@dataclass(frozen=True, eq=False)
class Clip:
    """A video: frames uint8 [F, H, W, 3], and when each is shown, seconds."""

    frames: np.ndarray
    timestamps: Sequence[float]


Medium = np.ndarray | Clip
"""A picture, uint8 [H, W, 3], or a video."""


def picture(seed: int, height: int, width: int) -> np.ndarray:
    """A random picture, uint8 [height, width, 3]: coarse colours with noise on them."""
    generator = np.random.default_rng(seed)
    coarse = generator.integers(0, 200, (-(-height // 16), -(-width // 16), 3))
    smooth = coarse.repeat(16, axis=0).repeat(16, axis=1)[:height, :width]
    return (smooth + generator.integers(0, 56, (height, width, 3))).astype(np.uint8)


def clip(seed: int, frames: int, height: int, width: int, *, fps: float = 2.0) -> Clip:
    """A random video with a frame every 1 / fps seconds."""
    pictures = np.stack([picture(seed + i, height, width) for i in range(frames)])
    return Clip(pictures, [i / fps for i in range(frames)])


def processed(processor: MediaProcessor, medium: Medium) -> ProcessedMedia:
    """A picture or a video, resized with the processor's own bounds."""
    if isinstance(medium, Clip):
        return processor.video(medium.frames, medium.timestamps)
    return processor.image(medium)


def media_item(medium: ProcessedMedia, device: torch.device | str = "cpu") -> MediaItem:
    """A processed medium on a device."""
    return MediaItem(medium.kind, torch.from_numpy(medium.pixels.copy()).to(device), medium.grid)


@dataclass(frozen=True)
class MediaPrompt:
    """A prompt as an engine holds it. features: of each medium, [tokens, media_width]."""

    placed: Placed
    features: Sequence[Tensor]

    @classmethod
    def make(
        cls, harness: Harness, processor: MediaProcessor, token_ids: Sequence[int], media: Sequence[Medium]
    ) -> MediaPrompt:
        """Process the media, expand the prompt and encode."""
        found = [processed(processor, medium) for medium in media]
        placed = processor.place(token_ids, found)
        with torch.inference_mode():
            features = harness.model.encode_media([media_item(m, harness.backend.context.device) for m in found])
        return cls(placed, features)

    def chunk(self, pages: Sequence[int], start: int = 0, end: int | None = None) -> Chunk:
        """Its tokens [start, end), to the prompt's end unless given."""
        tokens = self.placed.token_ids[start:end]
        stop = start + len(tokens)
        positions = self.placed.positions if self.placed.positions is None else self.placed.positions[:, start:stop]
        return Chunk(tokens, pages, start, positions, self._media(start, stop))

    def decode(self, pages: Sequence[int], index: int, token: int, axes: int) -> Chunk:
        """One token of an answer, at an index past the prompt's end."""
        position = index + self.placed.position_delta
        return Chunk([token], pages, index, np.full((axes, 1), position))

    def _media(self, start: int, end: int) -> MediaRows | None:
        runs = [part for run in self.placed.runs if (part := run.within(start, end)) is not None]
        if not runs:
            return None
        rows = torch.cat([torch.arange(run.start - start, run.end - start) for run in runs])
        features = torch.cat([self.features[run.media][run.first : run.first + run.length] for run in runs])
        return MediaRows(rows.to(features.device), features)
