"""Content parts become typed references, and what is malformed is refused by its place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from pymllm.errors import RequestError
from pymllm.media import ImageReference, VideoReference, offline_image, offline_video, parse_part
from pymllm.media.source import DataUrl, Decoded, Encoded, LocalFile, WebUrl

WHERE = "messages[0].content[2]"
U = "https://pictures.example/a.png"


def part(**keys: Any) -> dict[str, Any]:
    return keys


ONLINE = [
    (part(type="image_url", image_url={"url": U}), ImageReference(WHERE, WebUrl(U))),
    (part(type="image_url", image_url=U), ImageReference(WHERE, WebUrl(U))),
    (part(type="image_url", image_url={"url": U, "detail": "high"}), ImageReference(WHERE, WebUrl(U), "high")),
    (part(type="image_url", image_url={"url": U, "detail": None}), ImageReference(WHERE, WebUrl(U))),
    (
        part(type="image_url", image_url={"url": "DATA:image/png,x"}, min_pixels=4, max_pixels=9),
        ImageReference(WHERE, DataUrl("DATA:image/png,x"), "auto", 4, 9),
    ),
    (part(type="image_url", image_url="/a/b.png"), ImageReference(WHERE, LocalFile("/a/b.png"))),
    (part(type="image_url", image_url="file:///a/b.png"), ImageReference(WHERE, LocalFile("file:///a/b.png"))),
    (part(type="video_url", video_url={"url": U, "fps": 4}), VideoReference(WHERE, WebUrl(U), 4.0)),
    (part(type="video_url", video_url={"url": U, "num_frames": 4}), VideoReference(WHERE, WebUrl(U), None, 4)),
    (part(type="video_url", video_url=U, max_pixels=9), VideoReference(WHERE, WebUrl(U), max_pixels=9)),
    (part(type="video", video=[U, "/b"]), VideoReference(WHERE, (WebUrl(U), LocalFile("/b")))),
    (part(type="video", video=[U], fps=3, num_frames=1), VideoReference(WHERE, (WebUrl(U),), 3.0, 1)),
]


@pytest.mark.parametrize(("given", "expected"), ONLINE)
def test_parts_become_references(given: dict[str, Any], expected: object) -> None:
    assert parse_part(given, WHERE) == expected
    assert parse_part(given | {"min_pixels": given.get("min_pixels")}, WHERE) == expected


OFFLINE = [
    ("a/b.png", LocalFile("a/b.png", trusted=True)),
    (Path("a/b.png"), LocalFile("a/b.png", trusted=True)),
    ("file:///a/b.png", LocalFile("file:///a/b.png", trusted=True)),
    (b"bytes", Encoded(b"bytes")),
    (bytearray(b"bytes"), Encoded(b"bytes")),
    (U, WebUrl(U)),
    ("data:image/png,x", DataUrl("data:image/png,x")),
]


@pytest.mark.parametrize(("value", "source"), OFFLINE)
def test_python_callers_may_give_more(value: object, source: object) -> None:
    assert offline_image(value, WHERE) == ImageReference(WHERE, source)
    assert offline_video(value, WHERE) == VideoReference(WHERE, source)
    assert offline_video([value, value], WHERE) == VideoReference(WHERE, (source, source))


def test_python_callers_may_give_pixels() -> None:
    image, array = Image.new("RGB", (2, 2)), np.zeros((5, 2, 2, 3), np.uint8)
    source = offline_image(image, WHERE).source
    assert isinstance(source, Decoded)
    assert source.value is image
    frames = offline_video(array, WHERE).source
    assert isinstance(frames, tuple)
    assert [frame.value.shape for frame in frames if isinstance(frame, Decoded)] == [(2, 2, 3)] * 5


def test_image_url_stays_untrusted_offline() -> None:
    assert parse_part(part(type="image_url", image_url="/a"), WHERE, offline=True).source == LocalFile("/a")


@pytest.mark.parametrize(
    ("reference", "items"),
    [
        (ImageReference(WHERE, WebUrl(U)), 1),
        (VideoReference(WHERE, WebUrl(U)), 1),
        (VideoReference(WHERE, (WebUrl(U),) * 3), 3),
        (VideoReference(WHERE, (Encoded(b""),) * 3), 1),
    ],
)
def test_each_url_counts(reference: ImageReference | VideoReference, items: int) -> None:
    assert reference.items == items


REFUSED = [
    (part(type="image"), "type 'image' is for Python callers", "type"),
    (part(type="image", image="/etc/passwd"), "type 'image' is for Python callers", "type"),
    (part(type="input_audio"), "type must be one of image_url, image, video_url, video", "type"),
    (part(type=["image_url"]), "type must be one of", "type"),
    (part(), "type must be one of", "type"),
    (part(type="image_url"), "image_url must be given", "image_url"),
    (part(type="image_url", image_url=None), "image_url must be given", "image_url"),
    (part(type="image_url", image_url=[U]), "image_url must be an object with a url", "image_url"),
    (part(type="image_url", image_url={}), "image_url.url must be a string", "image_url.url"),
    (part(type="image_url", image_url={"url": 3}), "image_url.url must be a string", "image_url.url"),
    (part(type="image_url", image_url={"url": U, "fps": 3}), "image_url.fps is unknown", "image_url.fps"),
    (part(type="image_url", image_url={"url": U, "detail": "h"}), "image_url.detail must be", "image_url.detail"),
    (part(type="image_url", image_url={"url": U, "detail": []}), "image_url.detail must be", "image_url.detail"),
    (part(type="image_url", image_url=U, uuid="3"), "uuid is unknown", "uuid"),
    (part(type="image_url", image_url=U, **{"\ud800": 1}), r"\ud800 is unknown", r"\ud800"),
    (part(type="image_url", image_url=U, min_pixels=0), "min_pixels must be an integer from 1", "min_pixels"),
    (part(type="image_url", image_url=U, max_pixels=2**31), "max_pixels must be an integer from 1", "max_pixels"),
    (part(type="image_url", image_url=U, max_pixels=True), "max_pixels must be an integer", "max_pixels"),
    (part(type="image_url", image_url=U, max_pixels=4.0), "max_pixels must be an integer", "max_pixels"),
    (part(type="image_url", image_url=U, min_pixels=5, max_pixels=4), "min_pixels is 5, more than", "min_pixels"),
    (part(type="image_url", image_url="a.png"), "the URL must begin with https://", "image_url.url"),
    (part(type="image_url", image_url=""), "the URL must begin with https://", "image_url.url"),
    (part(type="image_url", image_url="ftp://a/b"), "the URL must begin with https://", "image_url.url"),
    (part(type="image_url", image_url="javascript:alert(1)"), "the URL must begin with", "image_url.url"),
    (part(type="image_url", image_url="https://a/" + "a" * 9000), "longer than 8192", "image_url.url"),
    (part(type="video_url", video_url={"url": U, "fps": 0}), "video_url.fps must be a number", "video_url.fps"),
    (part(type="video_url", video_url={"url": U, "fps": "4"}), "video_url.fps must be a number", "video_url.fps"),
    (part(type="video_url", video_url={"url": U, "fps": True}), "video_url.fps must be", "video_url.fps"),
    (part(type="video_url", video_url={"url": U, "fps": float("nan")}), "video_url.fps must be", "video_url.fps"),
    (part(type="video_url", video_url={"url": U, "fps": 1e-9}), "video_url.fps must be", "video_url.fps"),
    (
        part(type="video_url", video_url={"url": U, "fps": 1, "num_frames": 2}),
        "video_url.num_frames cannot be given together with fps",
        "video_url.num_frames",
    ),
    (part(type="video_url", video_url=U, fps=1), "fps is unknown", "fps"),
    (part(type="video", video=U), "video must be a list of frames", "video"),
    (part(type="video", video=[]), "video must hold at least one frame", "video"),
    (part(type="video", video=[U, {"url": U}]), "video[1] must be a string", "video[1]"),
    (part(type="video", video=[U, "a"]), "video[1]: the URL must begin", "video[1]"),
]


@pytest.mark.parametrize(("given", "sentence", "field"), REFUSED)
def test_malformed_parts_are_refused_by_place(given: dict[str, Any], sentence: str, field: str) -> None:
    with pytest.raises(RequestError) as refused:
        parse_part(given, WHERE)
    assert str(refused.value).startswith(f"{WHERE}: {field}")
    assert sentence in str(refused.value)
    assert refused.value.field == f"{WHERE}.{field}"
    str(refused.value).encode()  # goes into an answer in UTF-8


@pytest.mark.parametrize("value", [3, {"url": U}, object(), [b"bytes"]])
def test_other_python_values_are_refused(value: object) -> None:
    with pytest.raises(
        RequestError, match=r"^images\[1\]: image: must be a path, a URL, bytes, a PIL image or a NumPy"
    ):
        offline_image(value, "images[1]")
