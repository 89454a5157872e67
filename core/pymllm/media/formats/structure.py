"""What the readers of headers share."""

from __future__ import annotations

from dataclasses import dataclass

MAX_BLOCKS = 2**17
"""Most blocks (chunks, segments, sub-blocks) that are walked: a file of our largest size has so many only if it
was made to waste time."""

UNSAID_DURATION = 0.1
"""Seconds that a frame is shown whose file says 0, as in browsers."""


class Broken(Exception):
    """The file is cut off or malformed."""


@dataclass(frozen=True, slots=True)
class Header:
    """width, height: of the canvas, all frames included. durations: seconds that each frame of an animation is
    shown, empty for a still picture. first: the decoder's number of an animation's first frame.
    depth: bits of a sample (PNG)."""

    width: int
    height: int
    durations: tuple[float, ...] = ()
    first: int = 0
    depth: int = 8
