"""Picture files written byte by byte, so that what must come out is known without a decoder."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Iterable, Sequence
from fractions import Fraction

import numpy as np
from PIL import Image

PNG_START = b"\x89PNG\r\n\x1a\n"
GRAY, RGB, PALETTE, GRAY_ALPHA, RGB_ALPHA = 0, 2, 3, 4, 6
"""Colour types of PNG."""


def chunk(name: bytes, content: bytes = b"") -> bytes:
    """A PNG chunk."""
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))


def png(
    width: int,
    height: int,
    depth: int,
    colour: int,
    rows: Iterable[bytes],
    extra: Sequence[bytes] = (),
    after: bytes = b"",
) -> bytes:
    """A PNG of packed rows. extra: chunks before the pixels; after: chunks behind them."""
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    pixels = zlib.compress(b"".join(b"\0" + row for row in rows))
    parts = [chunk(b"IHDR", header), *extra, chunk(b"IDAT", pixels), after, chunk(b"IEND")]
    return PNG_START + b"".join(parts)


def rgb_png(pixels: np.ndarray) -> bytes:
    """A PNG of pixels uint8 [H, W, 3]."""
    height, width = pixels.shape[:2]
    return png(width, height, 8, RGB, [row.tobytes() for row in pixels])


def bmp(pixels: np.ndarray) -> bytes:
    """A 24-bit BMP, bottom row first, of pixels uint8 [H, W, 3]."""
    height, width = pixels.shape[:2]
    padding = b"\0" * (-3 * width % 4)
    rows = b"".join(row[:, ::-1].tobytes() + padding for row in pixels[::-1])
    header = struct.pack("<IiiHHIIiiII", 40, width, height, 1, 24, 0, len(rows), 0, 0, 0, 0)
    return b"BM" + struct.pack("<IHHI", 54 + len(rows), 0, 0, 54) + header + rows


def gif_frame(
    indices: np.ndarray, *, left: int = 0, top: int = 0, delay: int = 0, transparent: int | None = None
) -> bytes:
    """A frame of colour numbers 0 to 3 [H, W]. delay: hundredths of a second. The LZW code words are never
    extended: a clear code (4) stands before every second pixel."""
    height, width = indices.shape
    control = struct.pack("<BHB", transparent is not None, delay, transparent or 0)
    codes = [code for i, index in enumerate(indices.flatten()) for code in ([4, index] if i % 2 == 0 else [index])]
    bits = "".join(f"{int(code):03b}"[::-1] for code in [*codes, 5])
    packed = bytes(int(bits[i : i + 8][::-1], 2) for i in range(0, len(bits), 8))
    blocks = b"".join(bytes([len(part)]) + part for part in (packed[i : i + 255] for i in range(0, len(packed), 255)))
    place = struct.pack("<BHHHHB", 0x2C, left, top, width, height, 0)
    return b"\x21\xf9\x04" + control + b"\0" + place + b"\x02" + blocks + b"\0"


def gif(width: int, height: int, palette: Sequence[tuple[int, int, int]], frames: Iterable[bytes]) -> bytes:
    """A GIF of a palette of four colours."""
    colours = b"".join(bytes(colour) for colour in palette)
    return b"GIF89a" + struct.pack("<HHBBB", width, height, 0x81, 0, 0) + colours + b"".join(frames) + b";"


def saved(image: Image.Image, kind: str, **options: object) -> bytes:
    """What Pillow writes."""
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def noise(height: int, width: int, seed: int = 0) -> np.ndarray:
    """Random pixels uint8 [H, W, 3]."""
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)


def exif(orientation: int) -> bytes:
    """Exif data that say how the camera was held, and nothing else."""
    entry = struct.pack("<HHIHH", 0x0112, 3, 1, orientation, 0)
    return b"Exif\0\0II*\0" + struct.pack("<IH", 8, 1) + entry + struct.pack("<I", 0)


def film(
    frames: Sequence[np.ndarray], rate: Fraction | int = 8, codec: str = "mpeg4", container: str = "mp4", gop: int = 4
) -> bytes:
    """A video file of frames uint8 [H, W, 3] at a constant rate, as FFmpeg writes it."""
    import av

    file = io.BytesIO()
    with av.open(file, "w", format=container) as output:
        stream = output.add_stream(codec, rate=rate)
        stream.height, stream.width = frames[0].shape[:2]
        stream.pix_fmt = "yuv420p"
        stream.gop_size = gop
        stream.bit_rate = 4_000_000
        for frame in frames:
            output.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        output.mux(stream.encode())
    return file.getvalue()
