"""Animated GIF, WebP and PNG as videos. Runs in worker threads."""

from __future__ import annotations

import numpy as np
from PIL import ImageFile

from pymllm.config import MediaConfig
from pymllm.errors import RequestError
from pymllm.media.budget import Budget
from pymllm.media.checks import check_size
from pymllm.media.colours import to_rgb
from pymllm.media.formats.header import broken, read_header
from pymllm.media.formats.sniff import PictureKind
from pymllm.media.formats.structure import Header
from pymllm.media.picture import Pixels, Video
from pymllm.media.pictures import open_picture
from pymllm.media.reference import VideoReference
from pymllm.media.sampling import check_duration, displayed, frame_count

MAX_SOURCE_FRAMES = 10_000
"""Frames of an animation; each must be decoded to see the next."""


def decode_animation(
    kind: PictureKind, data: bytes, video: VideoReference, config: MediaConfig, budget: Budget
) -> Video:
    """Frames of an animation by time, transparency on white. Raises RequestError."""
    header = read_header(kind, data)
    if not header.durations:
        raise RequestError(f"it is a still {kind} picture, not a video; send it as image_url")
    check_size(header.width, header.height, config.max_pixels)
    count = len(header.durations)
    if count > MAX_SOURCE_FRAMES:
        raise RequestError(f"the animation has {count} frames; at most {MAX_SOURCE_FRAMES} are decoded")
    duration = sum(header.durations)
    check_duration(duration, config)
    # Not bound by the number of frames: one that is shown for seconds stands for all of them.
    taken = frame_count(video, 2**31, duration, config)
    indices, times = displayed(header.durations, taken)
    budget.take_pixels(taken * header.width * header.height)
    try:
        frames = _frames(kind, header, data, indices, budget)
    except RequestError:
        raise
    except Exception as error:  # whatever a decoder makes of a stranger's bytes
        raise broken(kind) from error
    return Video.of(frames, times, duration)


def _frames(kind: PictureKind, header: Header, data: bytes, indices: list[int], budget: Budget) -> Pixels:
    """[F, H, W, 3] of the frames with these numbers, which rise but may repeat."""
    frames = np.full((len(indices), header.height, header.width, 3), 255, np.uint8)
    places: dict[int, list[int]] = {}
    for place, index in enumerate(indices):
        places.setdefault(index, []).append(place)
    clock = budget.clock()
    with open_picture(kind, header, data) as image:
        for number in range(indices[-1] + 1):
            clock.check()
            _advance(image, header.first + number)
            if number in places:
                pixels = to_rgb(image)
                frames[places[number], : pixels.shape[0], : pixels.shape[1]] = pixels
    return frames


def _advance(image: ImageFile.ImageFile, number: int) -> None:
    """Frame by frame, each decoded before the next: otherwise a decoder loops over all in between by itself."""
    image.seek(number)
    image.load()
