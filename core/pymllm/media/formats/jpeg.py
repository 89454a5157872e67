"""JPEG (ITU T.81, Annex B)."""

from __future__ import annotations

import re
import struct

from pymllm.media.formats.structure import Broken, Header

_MAX_SEGMENTS = 2048
_MAX_SCANS = 64
"""Usual progressive files have about ten; each scan costs a pass over the whole picture, however small it is."""

_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_SCAN, _END = 0xDA, 0xD9
_ALONE = frozenset(range(0xD0, 0xD8)) | {0x01}

_MARKER = re.compile(rb"\xff[^\x00\xff\xd0-\xd7]")
"""The next marker after entropy-coded data, in which 0xff is followed by 0 or is a restart."""


def read_jpeg(data: bytes) -> Header:
    """Walks the segments and scans to the end of the image. Raises Broken, struct.error, IndexError."""
    size: tuple[int, int] | None = None
    scans = 0
    at = 2
    for _ in range(_MAX_SEGMENTS):
        found = _MARKER.search(data, at) if scans else None
        at = found.start() if found else at
        marker = data[at + 1]
        if data[at] != 0xFF:
            raise Broken
        if marker == _END:
            if size is None or not scans:
                raise Broken
            return Header(*size)
        at += 2
        if marker in _ALONE:
            continue
        if marker == 0xFF:
            at -= 1
            continue
        (length,) = struct.unpack_from(">H", data, at)
        if marker in _FRAMES:
            if size is not None:
                raise Broken
            height, width = struct.unpack_from(">HH", data, at + 3)
            size = width, height
        scans += marker == _SCAN
        if length < 2 or scans > _MAX_SCANS:
            raise Broken
        at += length
    raise Broken
