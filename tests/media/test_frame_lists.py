"""Videos given as lists of pictures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from PIL import Image

from media_files import noise, rgb_png
from media_site import Internet, Names, WebSite, answer
from pymllm.errors import RequestError
from pymllm.media import Media, Video, parse_part
from pymllm.media.web import Web

Load = Callable[..., list[Media]]

FRAMES = [noise(4, 6, seed) for seed in range(8)]


def video(load: Load, frames: Any, settings: dict[str, Any] | None = None, **sampling: Any) -> Video:
    part = {"type": "video", "video": frames, **sampling}
    [video] = load(parse_part(part, "here", offline=True), **(settings or {}))
    assert isinstance(video, Video)
    return video


def test_all_frames_at_their_rate(load: Load, tmp_path: Any) -> None:
    (tmp_path / "1.png").write_bytes(rgb_png(FRAMES[1]))
    given = [Image.fromarray(FRAMES[0]), tmp_path / "1.png", rgb_png(FRAMES[2]), *FRAMES[3:]]
    taken = video(load, given, fps=4)
    assert (taken.frames == np.stack(FRAMES)).all()
    assert taken.timestamps.tolist() == [i / 4 for i in range(8)]
    assert (taken.fps, taken.duration) == (4.0, 2.0)
    assert taken == video(load, np.stack(FRAMES), fps=4)
    assert taken.digest != video(load, np.stack(FRAMES), fps=2).digest


def test_the_default_rate(load: Load) -> None:
    assert video(load, FRAMES).timestamps.tolist() == [i / 2 for i in range(8)]
    assert video(load, FRAMES, {"video_fps": 8.0}).timestamps.tolist() == [i / 8 for i in range(8)]


def test_fewer_frames(load: Load) -> None:
    taken = video(load, FRAMES, fps=4, num_frames=3)  # 0, 3.5 to the even one, 7
    assert (taken.frames == np.stack([FRAMES[0], FRAMES[4], FRAMES[7]])).all()
    assert taken.timestamps.tolist() == [0, 1.0, 1.75]
    assert (taken.fps, taken.duration) == (1.5, 2.0)
    assert len(video(load, FRAMES, num_frames=100).frames) == 8


def test_frames_that_are_not_taken_are_not_looked_at(load: Load) -> None:
    assert len(video(load, [FRAMES[0], b"broken", FRAMES[2]], num_frames=2).frames) == 2


def test_frames_by_url(load: Load, site: WebSite) -> None:
    site.answers = {f"/{i}": answer(rgb_png(frame)) for i, frame in enumerate(FRAMES)}
    part = {"type": "video", "video": [f"http://a.example/{i}" for i in range(8)]}
    web = lambda config: Web(  # noqa: E731
        config, resolve=Names({"a.example": ["1.1.1.1"]}), network=Internet({"1.1.1.1": site.port})
    )
    [taken] = load(parse_part(part, "here"), web=web)
    assert isinstance(taken, Video)
    assert (taken.frames == np.stack(FRAMES)).all()
    with pytest.raises(RequestError, match=r"holds 8 pictures and videos; at most 7 are taken \(media.max_items"):
        load(parse_part(part, "here"), web=web, max_items_per_request=7)
    del site.answers["/5"]
    site.answers["/5"] = answer(status="404 Not Found")
    with pytest.raises(RequestError, match=r"^here: frame 5: the host a\.example answered with status 404"):
        load(parse_part(part, "here"), web=web)


@pytest.mark.parametrize(
    ("frames", "settings", "sentence"),
    [
        ([FRAMES[0], noise(6, 4)], {}, "frame 1 is 4 x 6, the first 6 x 4; all must be of one size"),
        ([FRAMES[0], b"x"], {}, "frame 1: the file is of no known format, not a picture"),
        (
            FRAMES,
            {"max_video_frames": 7},
            "at most 7 are taken (media.max_video_frames); give num_frames",
        ),
        (FRAMES, {"max_video_seconds": 3.9}, "the video lasts 4 seconds; at most 3.9"),
        (FRAMES, {"max_request_pixels": 191}, "together more than 191 pixels (media.max_request_pixels)"),
        (FRAMES[0], {}, "it is one picture, not a video; give a list of frames or an array [F, H, W, 3]"),
    ],
)
def test_refused(load: Load, frames: Any, settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(RequestError) as refused:
        video(load, frames, settings)
    assert str(refused.value).startswith("here: ")
    assert sentence in str(refused.value)
