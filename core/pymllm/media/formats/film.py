"""Whether video files are whole: MP4 and QuickTime (ISO 14496-12), WebM and Matroska (RFC 9559)."""

from __future__ import annotations

import struct

from pymllm.media.formats.sniff import FilmKind

_SEGMENT = b"\x18\x53\x80\x67"


def whole(kind: FilmKind, data: bytes) -> bool:
    """Whether nothing is missing at the end; FFmpeg would take what there is for all there was."""
    try:
        return _whole_mp4(data) if kind == "MP4" else _whole_webm(data)
    except (struct.error, IndexError):
        return False


def _whole_mp4(data: bytes) -> bool:
    """All boxes of the top level end within the file."""
    at = 0
    while len(data) - at >= 8:
        (size,) = struct.unpack_from(">I", data, at)
        if size == 0:  # up to the end of the file
            return True
        if size == 1:
            (size,) = struct.unpack_from(">Q", data, at + 8)
        if size < 8:
            return False
        at += size
    return at <= len(data)


def _whole_webm(data: bytes) -> bool:
    """The header and the segment after it end within the file."""
    header, at = _length(data, 4)
    if header is None or data[at + header : at + header + 4] != _SEGMENT:
        return False
    segment, at = _length(data, at + header + 4)
    return segment is None or at + segment <= len(data)


def _length(data: bytes, at: int) -> tuple[int | None, int]:
    """(an element's length, where its content begins). None: unknown, up to the end of the file."""
    size = 9 - data[at].bit_length()
    if size > 8:
        raise IndexError
    value = int.from_bytes(data[at : at + size], "big") & (1 << 7 * size) - 1
    return None if value == (1 << 7 * size) - 1 else value, at + size
