"""How large a picture or a video becomes: sides that are whole units of pixels, within bounds, aspect kept.

The rules are those that Qwen3-VL was trained with, as transformers' processors have them.
"""

from __future__ import annotations

from math import ceil, floor, sqrt

from pymllm.errors import RequestError
from pymllm_model_qwen3_vl.settings import Bounds

MOST_ASPECT = 200

Size = tuple[int, int]
"""Height, width."""


def image_size(size: Size, unit: int, bounds: Bounds) -> Size:
    """Of an image. unit: pixels that both sides are multiples of. Raises RequestError for an extreme aspect ratio."""
    return _fit(size, unit, bounds, frames=1, counted=1)


def video_size(frames: int, size: Size, unit: int, temporal: int, bounds: Bounds) -> Size:
    """Of a video's frames; the bounds are of all frames together. temporal: frames of a patch. Raises RequestError."""
    if min(size) < unit:
        scale = max(unit / side for side in size)
        size = int(size[0] * scale), int(size[1] * scale)
    return _fit(size, unit, bounds, frames=frames, counted=round(frames / temporal) * temporal)


def _fit(size: Size, unit: int, bounds: Bounds, *, frames: int, counted: int) -> Size:
    """counted: frames as the bounds count them."""
    if max(size) > MOST_ASPECT * min(size):
        raise RequestError(
            f"it is {size[1]} x {size[0]} pixels: no side may be {MOST_ASPECT} times as long as the other"
        )
    height, width = (round(side / unit) * unit for side in size)
    if counted * height * width > bounds.most:
        shrink = sqrt(frames * size[0] * size[1] / bounds.most)
        height, width = (max(unit, floor(side / shrink / unit) * unit) for side in size)
    elif counted * height * width < bounds.least:
        grow = sqrt(bounds.least / (frames * size[0] * size[1]))
        height, width = (ceil(side * grow / unit) * unit for side in size)
    return height, width
