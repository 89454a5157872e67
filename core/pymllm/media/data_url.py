"""``data:`` URLs (RFC 2397)."""

from __future__ import annotations

import binascii
import re
import string
from collections.abc import Container
from urllib.parse import unquote_to_bytes

from pymllm.errors import RequestError

IMAGE_TYPES = frozenset(
    f"image/{name}" for name in ("png", "apng", "jpeg", "jpg", "pjpeg", "webp", "gif", "bmp", "x-ms-bmp")
)
VIDEO_TYPES = frozenset(
    ("video/mp4", "video/quicktime", "video/webm", "video/x-matroska", "image/gif", "image/webp", "image/png")
) | {"image/apng"}

_ANY = "application/octet-stream"
_HEADER = 256
"""Longest media type with its parameters."""

_SPACE = b"\t\n\f\r "
_ALPHABET = (string.ascii_letters + string.digits + "+/").encode()
_PIECE = 2**20


def read_data_url(url: str, types: Container[str], max_bytes: int) -> bytes:
    """The content of a ``data:`` URL. types: media types that are taken (and application/octet-stream); they are
    what the sender says, so the content is still to be looked at.

    Base64 may hold white space, percent-encoded characters, and lack its padding (as in browsers).
    Raises RequestError for anything malformed, another type, no content, or more than ``max_bytes``.
    """
    comma = url.find(",", 0, _HEADER)
    if comma < 0:
        raise RequestError("the data: URL has no comma after its media type")
    kind, *parameters = (word.strip().lower() for word in url[len("data:") : comma].split(";"))
    if kind not in types and kind != _ANY:
        raise RequestError(f"the data: URL holds {_named(kind)}, not a supported type")
    if len(url) - comma > 4 * max_bytes + _HEADER:  # more than even percent-encoded base64 takes
        raise _too_large(max_bytes)
    try:
        content = url[comma + 1 :].encode("ascii")
    except UnicodeEncodeError:
        raise RequestError("the data: URL holds characters that are not ASCII") from None
    if b"%" in content:
        content = unquote_to_bytes(content)
    if parameters and parameters[-1] == "base64":
        content = _decoded(content)
    if not content:
        raise RequestError("the data: URL is empty")
    if len(content) > max_bytes:
        raise _too_large(max_bytes)
    return content


def _decoded(content: bytes) -> bytes:
    content = content.translate(None, _SPACE)
    bare = content.rstrip(b"=")
    if len(content) - len(bare) > 2 or bare.translate(None, _ALPHABET) or len(bare) % 4 == 1:
        raise RequestError("the data: URL is not valid base64")
    bare += b"=" * (-len(bare) % 4)
    # Piece by piece: decoding keeps all other Python threads waiting.
    return b"".join(binascii.a2b_base64(bare[at : at + _PIECE]) for at in range(0, len(bare), _PIECE))


def _named(kind: str) -> str:
    if re.fullmatch(r"[a-z0-9.+/-]{1,80}", kind):
        return kind
    return "an invalid media type" if kind else "no media type"


def _too_large(max_bytes: int) -> RequestError:
    return RequestError(f"the file is larger than {max_bytes} bytes (media.max_bytes)")
