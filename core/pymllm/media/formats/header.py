"""The one entry to the readers of headers."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping

from pymllm.errors import RequestError
from pymllm.media.formats.bmp import read_bmp
from pymllm.media.formats.gif import read_gif
from pymllm.media.formats.jpeg import read_jpeg
from pymllm.media.formats.png import read_png
from pymllm.media.formats.sniff import PictureKind
from pymllm.media.formats.structure import Broken, Header
from pymllm.media.formats.webp import read_webp

_READERS: Mapping[PictureKind, Callable[[bytes], Header]] = {
    "PNG": read_png,
    "JPEG": read_jpeg,
    "WebP": read_webp,
    "GIF": read_gif,
    "BMP": read_bmp,
}


def read_header(kind: PictureKind, data: bytes) -> Header:
    """The header of a whole file. Raises RequestError if it is cut off, malformed, or built to be slow."""
    try:
        return _READERS[kind](data)
    except (Broken, struct.error, IndexError):  # the latter two: read past the end
        raise broken(kind) from None


def broken(kind: str) -> RequestError:
    """Of a file of that format that cannot be decoded."""
    return RequestError(f"the {kind} file is cut off or broken")
