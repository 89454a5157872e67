"""What the size of a picture or frame must be, wherever it comes from."""

from __future__ import annotations

from pymllm.errors import RequestError

MAX_ASPECT_RATIO = 200
"""Longer side over shorter side."""


def check_size(width: int, height: int, max_pixels: int) -> None:
    """Raises RequestError for no pixels, too many (``media.max_pixels``), or a strip."""
    if width < 1 or height < 1:
        raise RequestError(f"it has no pixels ({width} x {height})")
    if width * height > max_pixels:
        raise RequestError(f"it is {width} x {height} pixels, more than {max_pixels} in all (media.max_pixels)")
    if max(width, height) > MAX_ASPECT_RATIO * min(width, height):
        raise RequestError(f"it is {width} x {height} pixels; one side may be {MAX_ASPECT_RATIO} times the other")
