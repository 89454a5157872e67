"""data: URLs, as browsers and careless clients write them."""

from __future__ import annotations

import base64
import re
from urllib.parse import quote, quote_from_bytes

import pytest

from pymllm.errors import RequestError
from pymllm.media.data_url import IMAGE_TYPES, VIDEO_TYPES, read_data_url

CONTENT = bytes(range(256)) + b"x"
B64 = base64.b64encode(CONTENT).decode()
assert B64.endswith("=")


@pytest.mark.parametrize(
    "url",
    [
        f"data:image/png;base64,{B64}",
        f"DATA:Image/PNG;BASE64,{B64}",
        f"data:image/jpeg;base64,{B64}",
        f"data:image/jpg;charset=utf-8;base64,{B64}",
        f"data:application/octet-stream;base64,{B64}",
        f"data: image/webp ; base64 ,{B64}",
        f"data:image/gif;base64,{B64.rstrip('=')}",
        f"data:image/bmp;base64,{quote(B64, safe='')}",
        "data:image/png;base64," + "\r\n".join(B64[i : i + 76] for i in range(0, len(B64), 76)),
        f"data:image/png,{quote_from_bytes(CONTENT)}",
        f"data:image/png;name=a,{quote_from_bytes(CONTENT)}",
    ],
)
def test_the_content_comes_out(url: str) -> None:
    assert read_data_url(url, IMAGE_TYPES, len(CONTENT)) == CONTENT


def test_video_types() -> None:
    assert read_data_url(f"data:video/mp4;base64,{B64}", VIDEO_TYPES, 1000) == CONTENT


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("data:", "no comma after its media type"),
        ("data:image/png;base64", "no comma after its media type"),
        ("data:" + "x" * 300 + ",", "no comma after its media type"),
        (f"data:,{B64}", "holds no media type"),
        (f"data:;base64,{B64}", "holds no media type"),
        (f"data:text/html;base64,{B64}", "holds text/html, not a supported type"),
        (f"data:image/svg+xml;base64,{B64}", "holds image/svg+xml, not a supported type"),
        (f"data:video/mp4;base64,{B64}", "holds video/mp4, not a supported type"),
        (f"data:<script>;base64,{B64}", "holds an invalid media type"),
        ("data:image/png;base64,", "is empty"),
        ("data:image/png;base64,====", "not valid base64"),
        ("data:image/png,", "is empty"),
        ("data:image/png;base64,AAAAA", "not valid base64"),
        ("data:image/png;base64,AA=A", "not valid base64"),
        ("data:image/png;base64,AA-_", "not valid base64"),
        ("data:image/png;base64,!!!!", "not valid base64"),
        ("data:image/png;base64,AAAA\u00e9", "not ASCII"),
        ("data:image/png;base64,AAAA\ud800", "not ASCII"),
        (f"data:image/png;base64,{base64.b64encode(CONTENT + b'x').decode()}", "larger than 257 bytes"),
        ("data:image/png;base64," + "A" * 100_000, "larger than 257 bytes"),
    ],
)
def test_what_is_wrong_is_said(url: str, sentence: str) -> None:
    with pytest.raises(RequestError, match=re.escape(sentence)):
        read_data_url(url, IMAGE_TYPES, len(CONTENT))
