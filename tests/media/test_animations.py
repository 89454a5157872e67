"""Animated GIF, WebP and PNG as videos: which frame is on display when."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from media_files import PNG_START, chunk, gif, gif_frame, noise, rgb_png, saved
from pymllm.errors import RequestError
from pymllm.media import Media, Video, offline_video

Load = Callable[..., list[Media]]

FRAMES = [noise(6, 5, seed) for seed in range(5)]
DURATIONS = [100, 200, 300, 400, 500]
"""Milliseconds: the frames begin at 0, 0.1, 0.3, 0.6 and 1 seconds; all end at 1.5."""


def animated(kind: str, durations: list[int] = DURATIONS, **options: Any) -> bytes:
    first, *others = [Image.fromarray(frame) for frame in FRAMES[: len(durations)]]
    return saved(first, kind, save_all=True, append_images=others, duration=durations, **options)


FILES = {"PNG": animated("PNG"), "WEBP": animated("WEBP", lossless=True), "GIF": animated("GIF")}


def video(load: Load, data: bytes, settings: dict[str, Any] | None = None, **sampling: Any) -> Video:
    [video] = load(replace(offline_video(data, "here"), **sampling), **(settings or {}))
    assert isinstance(video, Video)
    assert video.frames.dtype == np.uint8
    assert video.frames.flags.c_contiguous
    assert not video.frames.flags.writeable
    assert len(video.timestamps) == len(video.frames)
    return video


SAMPLED = [
    # (asked, number of each frame, when)
    ({"fps": 10.0}, [0, 1, 1, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4, 4], [i / 10 for i in range(15)]),
    ({"fps": 2.0}, [0, 2, 4], [0, 0.5, 1.0]),
    ({}, [0, 2, 4], [0, 0.5, 1.0]),  # media.video_fps is 2
    ({"num_frames": 5}, [0, 2, 3, 3, 4], [0, 0.3, 0.6, 0.9, 1.2]),
    ({"num_frames": 1}, [0], [0]),
    ({"fps": 0.1}, [0], [0]),
    ({"fps": 0.1, "min_frames": 2}, [0, 3], [0, 0.75]),
    ({"fps": 1.4}, [0, 3], [0, 0.75]),  # 1.5 s x 1.4 = 2.1
]


@pytest.mark.parametrize("kind", FILES)
@pytest.mark.parametrize(("asked", "numbers", "times"), SAMPLED)
def test_sampled_by_time(load: Load, kind: str, asked: dict[str, Any], numbers: list[int], times: list[float]) -> None:
    taken = video(load, FILES[kind], **asked)
    assert taken.timestamps == pytest.approx(times, abs=1e-9)
    assert taken.duration == pytest.approx(1.5)
    assert taken.fps == pytest.approx(len(numbers) / 1.5)
    # A GIF of more than 256 colours is not exact, so its frames are those that Pillow shows.
    shown = FRAMES if kind != "GIF" else list(pillow_frames(FILES["GIF"]))
    assert (taken.frames == np.stack([shown[number] for number in numbers])).all()


def pillow_frames(data: bytes) -> list[np.ndarray]:
    import io

    with Image.open(io.BytesIO(data)) as image:
        frames = []
        for number in range(image.n_frames):
            image.seek(number)
            frames.append(np.asarray(image.convert("RGB")))
    return frames


def test_frames_on_frames(load: Load) -> None:
    """A GIF by hand: the second frame changes one corner, the third, transparent, one pixel of another."""
    red, green, blue, grey = palette = [(255, 0, 0), (0, 255, 0), (0, 0, 255), (9, 9, 9)]
    file = gif(
        3,
        2,
        palette,
        [
            gif_frame(np.array([[0, 0, 0], [0, 0, 0]]), delay=50),
            gif_frame(np.array([[1]]), delay=50),
            gif_frame(np.array([[3, 2]]), left=1, top=1, delay=50, transparent=3),
        ],
    )
    taken = video(load, file, num_frames=3)
    assert taken.frames[0].tolist() == [[list(red)] * 3] * 2
    assert taken.frames[1].tolist() == [[list(green), list(red), list(red)], [list(red)] * 3]
    assert taken.frames[2].tolist() == [[list(green), list(red), list(red)], [list(red), list(red), list(blue)]]
    assert grey not in taken.frames.reshape(-1, 3).tolist()
    assert taken.timestamps.tolist() == [0, 0.5, 1.0]


def test_a_duration_of_zero_is_a_tenth_of_a_second(load: Load) -> None:
    file = gif(1, 1, [(0, 0, 0)] * 4, [gif_frame(np.array([[0]])) for _ in range(4)])
    assert video(load, file).duration == pytest.approx(0.4)


def test_one_frame_is_a_video(load: Load) -> None:
    taken = video(load, gif(1, 1, [(7, 8, 9)] * 4, [gif_frame(np.array([[0]]), delay=100)]))
    assert taken.frames.tolist() == [[[[7, 8, 9]]]] * 2  # of one second, at two frames a second


def test_a_default_picture_is_no_frame(load: Load) -> None:
    file = animated("PNG", [500, 500, 500], default_image=True)
    assert (video(load, file, num_frames=2).frames == np.stack(FRAMES[1:3])).all()


def test_transparent_frames_are_on_white(load: Load) -> None:
    clear = Image.new("RGBA", (4, 4), (255, 0, 0, 0))
    half = Image.new("RGBA", (4, 4), (255, 0, 0, 51))
    file = saved(clear, "WEBP", save_all=True, append_images=[half], duration=500, lossless=True, exact=True)
    taken = video(load, file, num_frames=2)
    assert (taken.frames[0] == 255).all()
    assert abs(taken.frames[1].astype(int) - [255, 204, 204]).max() <= 1


def test_digests(load: Load) -> None:
    first, again, fewer = (video(load, FILES[kind], num_frames=n) for kind, n in (("PNG", 3), ("WEBP", 3), ("PNG", 2)))
    assert first == again
    assert len(first.digest) == 32
    assert len({first.digest, fewer.digest}) == 2
    slower = video(load, animated("PNG", [2 * duration for duration in DURATIONS]), num_frames=3)
    assert (slower.frames == first.frames).all()
    assert slower.digest != first.digest  # other times


TINY = gif_frame(np.array([[0]]), delay=1)
BLACK = [(0, 0, 0)] * 4

REFUSED = [
    (rgb_png(FRAMES[0]), {}, {}, "it is a still PNG picture, not a video; send it as image_url"),
    (saved(Image.fromarray(FRAMES[0]), "WEBP"), {}, {}, "it is a still WebP picture"),
    (saved(Image.fromarray(FRAMES[0]), "JPEG"), {}, {}, "it is a still JPEG picture"),
    (b"text", {}, {}, "the file is of no known format, not a video (MP4, WebM, or an animated GIF, WebP or PNG)"),
    (b"%PDF", {}, {}, "it is PDF data, not a video"),
    (gif(1, 1, BLACK, [TINY] * 20_000), {}, {}, "the animation has 20000 frames; at most 10000 are decoded"),
    (gif(9000, 9000, BLACK, [TINY] * 9), {}, {}, "it is 9000 x 9000 pixels, more than 33554432 in all"),
    (gif(4000, 4000, BLACK, [TINY] * 2000), {"num_frames": 9}, {}, "together more than 134217728 pixels"),
    (FILES["PNG"], {"num_frames": 800}, {}, "num_frames=800 takes 800 frames; at most 768 are taken"),
    (FILES["PNG"], {"fps": 1000.0}, {}, "fps=1000 takes 1500 frames; at most 768 are taken (media.max_video_frames)"),
    (FILES["GIF"], {}, {"max_video_seconds": 1.4}, "the video lasts 1.5 seconds; at most 1.4 seconds are taken"),
    (FILES["GIF"][:-30], {}, {}, "the GIF file is cut off or broken"),
    (FILES["WEBP"][:-30], {}, {}, "the WebP file is cut off or broken"),
    (FILES["PNG"][:-30], {}, {}, "the PNG file is cut off or broken"),
    (
        FILES["PNG"].replace(chunk(b"acTL", b"\0\0\0\5\0\0\0\0"), chunk(b"acTL", b"\0\0\0\2\0\0\0\0")),
        {},
        {},
        "the PNG file is cut off or broken",  # it has more frames than it says
    ),
    (PNG_START + chunk(b"acTL", b"\0" * 8) + rgb_png(FRAMES[0])[8:], {}, {}, "the PNG file is cut off or broken"),
    (
        gif(4000, 2000, BLACK, [TINY] * 9000),
        {"fps": 0.1},
        {"decode_timeout_seconds": 0.3},
        "it was not decoded within 0.3 seconds (media.decode_timeout_seconds)",
    ),
]


@pytest.mark.timeout(30)
@pytest.mark.parametrize(("data", "asked", "settings", "sentence"), REFUSED)
def test_refused(load: Load, data: bytes, asked: dict[str, Any], settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(RequestError) as refused:
        video(load, data, settings, **asked)
    assert str(refused.value).startswith("here: ")
    assert sentence in str(refused.value)


def test_at_the_default_rate_the_limit_spreads_the_frames(load: Load) -> None:
    taken = video(load, FILES["PNG"], {"max_video_frames": 2, "video_fps": 10.0})
    assert taken.timestamps.tolist() == [0, 0.75]
