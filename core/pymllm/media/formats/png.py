"""PNG and APNG (W3C PNG, third edition)."""

from __future__ import annotations

import struct

from pymllm.media.formats.structure import MAX_BLOCKS, UNSAID_DURATION, Broken, Header


def read_png(data: bytes) -> Header:
    """Walks the chunks to IEND. Raises Broken, struct.error, IndexError."""
    if data[12:16] != b"IHDR":
        raise Broken
    width, height, depth = struct.unpack_from(">IIB", data, 16)
    durations: list[float] = []
    animated, first = False, -1
    at = 8
    for _ in range(MAX_BLOCKS):
        length, name = struct.unpack_from(">I4s", data, at)
        content, at = at + 8, at + 12 + length
        if at > len(data):
            raise Broken
        if name == b"IDAT" and first < 0:
            first = 0 if durations else 1  # a default picture that is no frame of the animation comes before it
        elif name == b"acTL":
            animated = True
        elif name == b"fcTL":
            numerator, denominator = struct.unpack_from(">HH", data, content + 20)
            durations.append(numerator / (denominator or 100) or UNSAID_DURATION)
        elif name == b"IEND":
            if first < 0:
                raise Broken
            return Header(width, height, tuple(durations) if animated else (), first, depth)
    raise Broken
