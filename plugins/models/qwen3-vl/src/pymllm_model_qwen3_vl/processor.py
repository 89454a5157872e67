"""Qwen3-VL's media processor: resizes pictures and frames, and expands the placeholders of a prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isqrt
from typing import Any

import numpy as np
from PIL import Image

from pymllm.errors import RequestError
from pymllm.interfaces import MediaProcessor, Placed, ProcessedMedia, ProcessorContext
from pymllm.interfaces.media import Detail, MediaKind, Pixels, Times
from pymllm_model_qwen3_vl.placing import Placing, Tokens
from pymllm_model_qwen3_vl.resizing import MOST_ASPECT, Size, image_size, video_size
from pymllm_model_qwen3_vl.settings import Bounds, read_settings
from pymllm_model_qwen3_vl.sizes import VisionSizes

LOW_DETAIL_PIXELS = 512 * 512


class Qwen3VLProcessor(MediaProcessor):
    """Resizes as transformers' ``Qwen2VLImageProcessorPil`` does (videos frame by frame, their size as
    ``Qwen3VLVideoProcessor`` chooses it) and expands as its ``Qwen3VLProcessor``."""

    def __init__(self, config: Mapping[str, Any], context: ProcessorContext) -> None:
        self._sizes = sizes = VisionSizes.read(config)
        settings = read_settings(context.folder, sizes)
        self._image = _limited(settings.image, getattr(context.options, "image_max_pixels", None))
        self._video = _limited(settings.video, getattr(context.options, "video_max_pixels", None))
        self._frame_pixels = settings.frame_pixels
        self._placing = Placing(Tokens.read(config), sizes.merge, context.encode)
        self.max_tokens = max(_most_image_pixels(self._image, sizes.unit), 3 * self._video.most // 4) // sizes.unit**2

    def image(
        self, pixels: Pixels, *, min_pixels: int | None = None, max_pixels: int | None = None, detail: Detail = "auto"
    ) -> ProcessedMedia:
        bounds = _asked(self._image, min_pixels, max_pixels, "model.image_max_pixels")
        if detail == "low" and bounds.most > LOW_DETAIL_PIXELS:
            bounds = Bounds(min(bounds.least, LOW_DETAIL_PIXELS), LOW_DETAIL_PIXELS)
        return self._processed("image", pixels[None], image_size(pixels.shape[:2], self._sizes.unit, bounds), 1)

    def video(
        self,
        frames: Pixels,
        timestamps: Times,
        *,
        min_pixels: int | None = None,
        max_pixels: int | None = None,
    ) -> ProcessedMedia:
        if len(frames) == 0 or len(frames) != len(timestamps):
            raise RequestError(f"the video has {len(frames)} frames and {len(timestamps)} timestamps")
        bounds = _asked(self._video, min_pixels, max_pixels, "model.video_max_pixels")
        temporal = self._sizes.temporal_patch
        # A single frame is a whole patch in time as well.
        count = max(len(frames), temporal)
        if self._frame_pixels is not None:
            each = max(min(self._frame_pixels, bounds.most // count), int(bounds.least * 1.05))
            bounds = Bounds(bounds.least, each * count)
        size = video_size(count, frames.shape[1:3], self._sizes.unit, temporal, bounds)
        return self._processed("video", frames, size, temporal, timestamps)

    def place(self, token_ids: Sequence[int], media: Sequence[ProcessedMedia]) -> Placed:
        return self._placing(token_ids, media)

    def _processed(
        self, kind: MediaKind, frames: Pixels, size: Size, temporal: int, timestamps: Times = ()
    ) -> ProcessedMedia:
        """Resize frames to a size and fill them up, with the last one, to whole patches in time of ``temporal``."""
        grid = (-(-len(frames) // temporal), size[0] // self._sizes.patch, size[1] // self._sizes.patch)
        tokens = grid[0] * grid[1] * grid[2] // self._sizes.merge**2
        if tokens > self.max_tokens:
            raise RequestError(f"the {kind} becomes {tokens} tokens, more than {self.max_tokens}: lower max_pixels")
        pixels = np.empty((grid[0] * temporal, *size, 3), dtype=np.uint8)
        for index, frame in enumerate(frames):
            pixels[index] = _resized(frame, size)
        pixels[len(frames) :] = pixels[len(frames) - 1]
        settings = f"{kind} {len(pixels)} x {size[0]} x {size[1]}".encode()
        return ProcessedMedia(kind, pixels, grid, tokens, settings, _middles(timestamps, temporal))


def _resized(frame: Pixels, size: Size) -> Pixels:
    if frame.shape[:2] == size:
        return frame
    return np.asarray(Image.fromarray(frame).resize(size[::-1], Image.Resampling.BICUBIC))


def _middles(timestamps: Times, temporal: int) -> tuple[float, ...]:
    """The middle of each patch in time: halfway between its first and its last frame."""
    padded = [float(time) for time in timestamps]
    padded += padded[-1:] * (-len(padded) % temporal)
    return tuple((padded[i] + padded[i + temporal - 1]) / 2 for i in range(0, len(padded), temporal))


def _limited(bounds: Bounds, most: int | None) -> Bounds:
    return bounds if most is None else Bounds(min(bounds.least, most), most)


def _asked(bounds: Bounds, min_pixels: int | None, max_pixels: int | None, option: str) -> Bounds:
    """Bounds as a request wants them. Raises RequestError for what is beyond the server's, or contradicts itself."""
    most = bounds.most if max_pixels is None else max_pixels
    if most > bounds.most:
        raise RequestError(f"max_pixels is {most}, but this server takes at most {bounds.most} ({option})")
    least = min(bounds.least, most) if min_pixels is None else min_pixels
    if least > most:
        raise RequestError(f"min_pixels is {least}, more than the {most} pixels that there may be")
    return Bounds(least, most)


def _most_image_pixels(bounds: Bounds, unit: int) -> int:
    """Of a resized image: sides are whole units, so that a long thin one may pass the bounds."""
    shrunk = unit * isqrt(MOST_ASPECT * bounds.most)
    grown = bounds.least + (isqrt(MOST_ASPECT) + 2) * unit * isqrt(bounds.least) + unit**2
    return max(bounds.most, shrunk, grown)
