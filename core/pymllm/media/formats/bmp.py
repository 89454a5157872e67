"""BMP (Windows bitmap, and OS/2's older header)."""

from __future__ import annotations

import struct

from pymllm.media.formats.structure import Header


def read_bmp(data: bytes) -> Header:
    """Reads the header; that pixels are missing shows when they are decoded. Raises struct.error."""
    (header,) = struct.unpack_from("<I", data, 14)
    if header == 12:
        width, height = struct.unpack_from("<HH", data, 18)
    else:
        width, height = struct.unpack_from("<ii", data, 18)
    return Header(abs(width), abs(height))  # a negative height is a picture from top to bottom
