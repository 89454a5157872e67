"""GIF (CompuServe, version 89a)."""

from __future__ import annotations

import struct

from pymllm.media.formats.structure import MAX_BLOCKS, UNSAID_DURATION, Broken, Header

_IMAGE, _EXTENSION, _END = 0x2C, 0x21, 0x3B
_CONTROL = 0xF9


def read_gif(data: bytes) -> Header:
    """Walks the blocks to the trailer. A frame that sticks out enlarges the canvas, as it does in the decoder.
    Raises Broken, struct.error, IndexError."""
    width, height, flags = struct.unpack_from("<HHB", data, 6)
    durations: list[float] = []
    delay, blocks = 0, 0
    at = 13 + _palette(flags)
    while data[at] != _END:
        blocks += 1
        if data[at] == _EXTENSION:
            if data[at + 1] == _CONTROL:
                (delay,) = struct.unpack_from("<H", data, at + 4)
            at += 2
        elif data[at] == _IMAGE:
            left, top, w, h, flags = struct.unpack_from("<HHHHB", data, at + 1)
            width, height = max(width, left + w), max(height, top + h)
            durations.append(delay / 100 or UNSAID_DURATION)
            delay = 0
            at += 11 + _palette(flags)
        else:
            raise Broken
        while data[at]:
            blocks += 1
            at += 1 + data[at]
        at += 1
        if blocks > MAX_BLOCKS * 4:
            raise Broken
    if not durations:
        raise Broken
    return Header(width, height, tuple(durations))


def _palette(flags: int) -> int:
    """Bytes of the colour table."""
    return 3 << (flags & 7) + 1 if flags & 0x80 else 0
