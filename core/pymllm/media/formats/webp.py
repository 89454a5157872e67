"""WebP (RFC 9649)."""

from __future__ import annotations

import struct

from pymllm.media.formats.structure import MAX_BLOCKS, UNSAID_DURATION, Broken, Header


def read_webp(data: bytes) -> Header:
    """Walks the chunks to the end of the container. Raises Broken, struct.error, IndexError."""
    end = 8 + int.from_bytes(data[4:8], "little")
    if data[:4] != b"RIFF" or end > len(data):
        raise Broken
    size: tuple[int, int] | None = None
    durations: list[float] = []
    at = 12
    for _ in range(MAX_BLOCKS):
        if at >= end:
            break
        name, length = struct.unpack_from("<4sI", data, at)
        content = at + 8
        if content + length > end:
            raise Broken
        if size is None:
            size = _size(name, data, content)
        if name == b"ANMF":
            durations.append(_number(data, content + 12, 3) / 1000 or UNSAID_DURATION)
        at = content + length + length % 2
    if at < end or size is None:
        raise Broken
    return Header(*size, tuple(durations))


def _size(name: bytes, data: bytes, at: int) -> tuple[int, int]:
    """Of the first chunk, which says it."""
    if name == b"VP8X":
        return _number(data, at + 4, 3) + 1, _number(data, at + 7, 3) + 1
    if name == b"VP8 " and data[at + 3 : at + 6] == b"\x9d\x01\x2a":
        return _number(data, at + 6, 2) & 0x3FFF, _number(data, at + 8, 2) & 0x3FFF
    if name == b"VP8L" and data[at] == 0x2F:
        bits = _number(data, at + 1, 4)
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    raise Broken


def _number(data: bytes, at: int, size: int) -> int:
    return int.from_bytes(data[at : at + size], "little")
