"""Which frames of a video are taken."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pymllm.config import MediaConfig
from pymllm.errors import RequestError
from pymllm.media.reference import VideoReference


def frame_count(video: VideoReference, frames: int, duration: float, config: MediaConfig) -> int:
    """How many frames to take of a video of so many frames and seconds: ``num_frames``, or the whole part of
    ``fps`` x seconds but at least ``min_frames``; never more than there are, nor, at the default rate, than
    ``media.max_video_frames``. Raises RequestError if the request asks for more than that."""
    most = config.max_video_frames
    if video.num_frames is not None:
        wanted = video.num_frames
    else:
        wanted = max(int(duration * (video.fps or config.video_fps)), video.min_frames, 1)
    wanted = min(wanted, frames)
    if wanted <= most:
        return wanted
    if video.fps is None and video.num_frames is None:
        return most
    asked = f"num_frames={video.num_frames}" if video.fps is None else f"fps={video.fps:g}"
    raise RequestError(f"{asked} takes {wanted} frames; at most {most} are taken (media.max_video_frames)")


def check_duration(seconds: float, config: MediaConfig) -> None:
    """Raises RequestError for a video that is too long, or has no length."""
    if not 0 < seconds <= config.max_video_seconds:
        limit = f"at most {config.max_video_seconds:g} seconds are taken (media.max_video_seconds)"
        raise RequestError(f"the video lasts {seconds:.6g} seconds; {limit}")


def spread(frames: int, taken: int) -> list[int]:
    """Numbers of ``taken`` frames out of so many at a constant rate: from the first to the last, evenly (as
    transformers' video processors take them)."""
    return [int(index) for index in np.linspace(0, frames - 1, taken).round()]


def displayed(durations: Sequence[float], taken: int) -> tuple[list[int], list[float]]:
    """Frames of an animation, whose frames may be shown for different times: it is cut into ``taken`` equal parts;
    the result is which frame is on display when each begins, and when that is. A frame that is shown for long
    is taken more than once."""
    ends = np.cumsum(durations)
    times = np.arange(taken) * (ends[-1] / taken)
    # Half a microsecond later: a frame that begins at that moment is on display, in spite of rounding.
    indices = np.searchsorted(ends, times + 5e-7, side="right").clip(0, len(durations) - 1)
    return [int(index) for index in indices], [float(time) for time in times]
