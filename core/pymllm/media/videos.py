"""Videos out of files and out of lists of frames. Runs in worker threads."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pymllm.config import MediaConfig
from pymllm.errors import RequestError
from pymllm.media.animations import decode_animation
from pymllm.media.budget import Budget
from pymllm.media.films import decode_film
from pymllm.media.formats.sniff import FILMS, PICTURES, sniff
from pymllm.media.picture import Picture, Video
from pymllm.media.reference import VideoReference
from pymllm.media.sampling import check_duration, frame_count, spread


def decode_video(data: bytes, video: VideoReference, config: MediaConfig, budget: Budget) -> Video:
    """The frames of a file. Raises RequestError."""
    name = sniff(data)
    for film in FILMS:
        if name == film:
            return decode_film(film, data, video, config, budget)
    for kind in PICTURES:
        if name == kind:
            return decode_animation(kind, data, video, config, budget)
    what = f"it is {name} data" if name else "the file is of no known format"
    raise RequestError(f"{what}, not a video ({', '.join(FILMS)}, or an animated GIF, WebP or PNG)")


def taken_frames(video: VideoReference, frames: int, config: MediaConfig) -> tuple[list[int], float]:
    """(which of a list of frames are taken, seconds that all last). Its rate is ``fps``, or ``media.video_fps``;
    all are taken unless ``num_frames`` says otherwise. Raises RequestError."""
    duration = frames / (video.fps or config.video_fps)
    check_duration(duration, config)
    if video.num_frames is None and frames > config.max_video_frames:
        limit = f"{config.max_video_frames} are taken (media.max_video_frames); give num_frames"
        raise RequestError(f"the video has {frames} frames; at most {limit}")
    wanted = frames if video.num_frames is None else frame_count(video, frames, duration, config)
    return spread(frames, wanted), duration


def join_frames(pictures: Sequence[Picture], indices: Sequence[int], frames: int, duration: float) -> Video:
    """The video of the pictures, which are those with these numbers out of so many. Raises RequestError if they
    are not of one size."""
    first = pictures[0]
    for index, picture in zip(indices, pictures):
        if picture.pixels.shape != first.pixels.shape:
            sizes = f"{picture.width} x {picture.height}, the first {first.width} x {first.height}"
            raise RequestError(f"frame {index} is {sizes}; all must be of one size")
    times = [index * duration / frames for index in indices]
    return Video.of(np.stack([picture.pixels for picture in pictures]), times, duration)
