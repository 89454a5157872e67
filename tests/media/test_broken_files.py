"""Files that are cut off, broken, built to hurt, or no pictures at all."""

from __future__ import annotations

import contextlib
import json
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import pytest
from PIL import Image

from media_files import GRAY, PNG_START, RGB, chunk, exif, gif, gif_frame, noise, png, rgb_png, saved
from pymllm.config import MediaConfig
from pymllm.errors import RequestError
from pymllm.media import Picture
from pymllm.media.budget import Budget
from pymllm.media.pictures import decode_picture

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:PIL")

CONFIG = MediaConfig()
PIXELS = noise(13, 17)
IMAGE = Image.fromarray(PIXELS)
BLACK = [(0, 0, 0)] * 4


def decode(data: bytes, config: MediaConfig = CONFIG) -> Picture:
    return decode_picture(data, config, Budget(config))


WHOLE = {
    "png": rgb_png(PIXELS),
    "palette png": saved(IMAGE.convert("P"), "PNG"),
    "apng": saved(IMAGE, "PNG", save_all=True, append_images=[Image.fromarray(noise(13, 17, 1))]),
    "jpeg": saved(IMAGE, "JPEG"),
    "progressive jpeg": saved(IMAGE, "JPEG", progressive=True),
    "cmyk jpeg": saved(IMAGE.convert("CMYK"), "JPEG"),
    "jpeg with exif": saved(IMAGE, "JPEG", exif=exif(6)),
    "webp": saved(IMAGE, "WEBP"),
    "lossless webp": saved(IMAGE, "WEBP", lossless=True),
    "webp with exif": saved(IMAGE, "WEBP", exif=exif(6)),
    "animated webp": saved(IMAGE, "WEBP", save_all=True, append_images=[Image.fromarray(noise(13, 17, 1))]),
    "gif": saved(IMAGE, "GIF"),
    "animated gif": saved(IMAGE, "GIF", save_all=True, append_images=[Image.fromarray(noise(13, 17, 1))]),
    "bmp": saved(IMAGE, "BMP"),
    "palette bmp": saved(IMAGE.convert("P"), "BMP"),
}


@pytest.mark.parametrize("name", WHOLE)
def test_cut_off_anywhere(name: str) -> None:
    """However much is missing: refused, or (only padding was missing) the same picture."""
    whole = decode(WHOLE[name])
    accepted = 0
    for length in range(len(WHOLE[name])):
        try:
            picture = decode(WHOLE[name][:length])
        except RequestError:
            continue
        accepted += 1
        assert picture == whole, length
    assert accepted <= 3


@pytest.mark.parametrize("name", WHOLE)
def test_changed_anywhere(name: str) -> None:
    """Whatever a wrong byte does, it is a picture or a sentence."""
    data = bytearray(WHOLE[name])
    for place in range(0, len(data), 3):
        for value in (0, 0xFF, data[place] ^ 0x55):
            before, data[place] = data[place], value
            with contextlib.suppress(RequestError):
                assert decode(bytes(data), MediaConfig(max_pixels=10_000)).pixels.size <= 30_000
            data[place] = before


def jpeg_of(width: int, height: int) -> bytes:
    data = WHOLE["jpeg"]
    at = data.index(b"\xff\xc0") + 5
    return data[:at] + struct.pack(">HH", height, width) + data[at + 4 :]


def bmp_of(width: int, height: int) -> bytes:
    return b"BM" + struct.pack("<IHHIIiiHHIIiiII", 58, 0, 0, 54, 40, width, height, 1, 24, 0, 4, 0, 0, 0, 0) + b"\0" * 4


def webp_of(width: int, height: int) -> bytes:
    canvas = b"\x02\0\0\0" + struct.pack("<I", width - 1)[:3] + struct.pack("<I", height - 1)[:3]
    content = b"WEBPVP8X" + struct.pack("<I", 10) + canvas
    return b"RIFF" + struct.pack("<I", len(content)) + content


def png_of(width: int, height: int) -> bytes:
    return png(width, height, 8, RGB, [b"\0" * 64])


PROGRESSIVE = WHOLE["progressive jpeg"]
LAST_SCAN = PROGRESSIVE[PROGRESSIVE.rindex(b"\xff\xda") : -2]
MANY_FRAMES = saved(IMAGE, "WEBP", save_all=True, append_images=[Image.fromarray(noise(13, 17, i)) for i in range(9)])

TOO_MANY = "pixels, more than 33554432 in all (media.max_pixels)"
STRIP = "one side may be 200 times the other"
BROKEN = "file is cut off or broken"

BOMBS = {
    "a png of 50000 x 50000": (png_of(50000, 50000), TOO_MANY),
    "the largest png": (png_of(2**31 - 1, 2**31 - 1), TOO_MANY),
    "a png of 30000 x 30000, all there": (
        PNG_START
        + chunk(b"IHDR", struct.pack(">IIBBBBB", 30000, 30000, 1, GRAY, 0, 0, 0))
        + chunk(b"IDAT", zlib.compress(b"\0" * 3751 * 30000, 9))
        + chunk(b"IEND"),
        TOO_MANY,
    ),
    "the largest jpeg": (jpeg_of(65500, 65500), TOO_MANY),
    "the largest gif": (gif(65535, 65535, BLACK, [gif_frame(PIXELS[..., 0] % 4)]), TOO_MANY),
    "a gif whose frame sticks out": (
        gif(1, 1, BLACK, [gif_frame(PIXELS[..., 0] % 4, left=65000, top=65000)]),
        TOO_MANY,
    ),
    "a gif whose second frame sticks out": (
        gif(13, 17, BLACK, [gif_frame(PIXELS[..., 0] % 4), gif_frame(PIXELS[..., 0] % 4, left=65000, top=65000)]),
        TOO_MANY,
    ),
    "a gif whose frame is said to be large": (
        gif(8, 8, BLACK, [gif_frame(PIXELS[..., 0] % 4).replace(struct.pack("<HH", 17, 13), b"\xff\xff\xff\xff")]),
        TOO_MANY,
    ),
    "the largest webp": (webp_of(2**24, 2**24), TOO_MANY),
    "an animated webp of 16000 x 16000": (
        MANY_FRAMES.replace(struct.pack("<I", 16)[:3] + struct.pack("<I", 12)[:3], (15999).to_bytes(3, "little") * 2),
        TOO_MANY,
    ),
    "the largest bmp": (bmp_of(2**31 - 1, 2**31 - 1), TOO_MANY),
    "a bmp upside down": (bmp_of(30000, -(2**31)), TOO_MANY),
    "a strip": (png_of(20001, 100), STRIP),
    "a thread": (png_of(1, 201), STRIP),
    "a jpeg of a thousand scans": (PROGRESSIVE[:-2] + LAST_SCAN * 1000 + b"\xff\xd9", BROKEN),
    "a jpeg of a million segments": (b"\xff\xd8" + b"\xff\xe4\0\2" * 1_000_000 + WHOLE["jpeg"][2:], BROKEN),
    "a jpeg of a million fill bytes": (b"\xff\xd8" + b"\xff" * 1_000_000 + WHOLE["jpeg"][2:], BROKEN),
    "a png of a million chunks": (png_of(8, 8)[:33] + chunk(b"tESt") * 1_000_000 + png_of(8, 8)[33:], BROKEN),
    "a gif of a million blocks": (
        gif(8, 8, BLACK, [b"\x21\xfe" + b"\x01x" * 1_000_000 + b"\0", gif_frame(PIXELS[:8, :8, 0] % 4)]),
        BROKEN,
    ),
    "a webp of a million chunks": (
        b"RIFF" + struct.pack("<I", 22 + 8_000_000) + webp_of(8, 8)[8:] + b"tESt\0\0\0\0" * 1_000_000,
        BROKEN,
    ),
    "a png with a text bomb": (
        png_of(8, 8)[:33] + chunk(b"zTXt", b"a\0\0" + zlib.compress(b"x" * 50_000_000)) + png_of(8, 8)[33:],
        BROKEN,
    ),
}


@pytest.mark.timeout(30)
@pytest.mark.parametrize("name", BOMBS)
def test_bombs(name: str) -> None:
    data, sentence = BOMBS[name]
    with pytest.raises(RequestError) as refused:
        decode(data)
    assert str(refused.value).endswith(sentence)


_SPARING = """
import json, resource, sys
from pathlib import Path
from pymllm.config import MediaConfig
from pymllm.media.budget import Budget
from pymllm.media.pictures import decode_picture
config = MediaConfig()
files = sorted(Path(sys.argv[1]).iterdir())
decode_picture(files[0].read_bytes(), config, Budget(config))
pages = int(Path("/proc/self/statm").read_text().split()[0])
limit = pages * resource.getpagesize() + 128 * 1024 * 1024
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
for file in files[1:]:
    try:
        decode_picture(file.read_bytes(), config, Budget(config))
    except ValueError as error:
        print(json.dumps([file.name, str(error)]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_bombs_take_no_memory(tmp_path: Path) -> None:
    """In a process that may grow by 128 MiB they are refused with the same sentences."""
    (tmp_path / " good").write_bytes(WHOLE["png"])
    for name, (data, _) in BOMBS.items():
        (tmp_path / name).write_bytes(data)
    done = subprocess.run([sys.executable, "-c", _SPARING, tmp_path], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    said = dict(json.loads(line) for line in done.stdout.splitlines())
    assert said.keys() == BOMBS.keys()
    assert [name for name in BOMBS if not said[name].endswith(BOMBS[name][1])] == []


PNG = WHOLE["png"]

REFUSED = {
    "nothing": (b"", "the file is of no known format"),
    "one byte": (b"\x89", "the file is of no known format"),
    "text": (b"hello, world", "the file is of no known format, not a picture (PNG, JPEG, WebP, GIF, BMP)"),
    "zeros": (b"\0" * 1000, "the file is of no known format"),
    "html": (b"<!DOCTYPE html>", "it is HTML, XML or SVG data, not a picture"),
    "svg": (b"\xef\xbb\xbf <svg/>", "it is HTML, XML or SVG data"),
    "json": (b'{"error": 1}', "it is JSON data"),
    "tiff": (saved(IMAGE, "TIFF"), "it is TIFF data"),
    "ico": (saved(IMAGE, "ICO"), "it is ICO data"),
    "jpeg 2000": (saved(IMAGE, "JPEG2000"), "it is JPEG 2000 data"),
    "pdf": (saved(IMAGE, "PDF"), "it is PDF data"),
    "eps": (saved(IMAGE, "EPS"), "the file is of no known format"),  # would run Ghostscript
    "ppm": (saved(IMAGE, "PPM"), "the file is of no known format"),
    "pcx": (saved(IMAGE, "PCX"), "the file is of no known format"),
    "tga": (saved(IMAGE, "TGA"), "the file is of no known format"),
    "zip": (b"PK\3\4" + b"\0" * 100, "it is ZIP data"),
    "gzip": (b"\x1f\x8b\x08" + b"\0" * 100, "it is gzip data"),
    "heic": (b"\0\0\0\x18ftypheic" + b"\0" * 100, "it is HEIC data"),
    "avif": (b"\0\0\0\x18ftypavif" + b"\0" * 100, "it is AVIF data"),
    "mp4": (
        b"\0\0\0\x18ftypisom" + b"\0" * 100,
        "not a picture (PNG, JPEG, WebP, GIF, BMP); send it as video_url",
    ),
    "webm": (b"\x1a\x45\xdf\xa3" + b"\0" * 100, "it is WebM data, not a picture"),
    "avi": (b"RIFF\0\0\0\0AVI LIST", "it is AVI data"),
    "a png's start alone": (PNG_START, f"the PNG {BROKEN}"),
    "a png without pixels": (PNG_START + chunk(b"IHDR", PNG[16:29]) + chunk(b"IEND"), f"the PNG {BROKEN}"),
    "a png without header": (PNG_START + PNG[33:], f"the PNG {BROKEN}"),
    "a png with a wrong checksum": (PNG[:40] + b"!" + PNG[41:], f"the PNG {BROKEN}"),
    "a png of an unknown colour type": (png(4, 4, 8, 5, [b"\0" * 4] * 4), f"the PNG {BROKEN}"),
    "a png without width": (png_of(0, 4), "it has no pixels (0 x 4)"),
    "a png whose second header is larger": (
        PNG_START + PNG[8:33] + chunk(b"IHDR", struct.pack(">IIBBBBB", 999, 999, 8, RGB, 0, 0, 0)) + PNG[33:],
        f"the PNG {BROKEN}",
    ),
    "a png whose chunk is too long": (PNG_START + PNG[8:33] + b"\xff\xff\xff\xffIDAT" + PNG[41:], f"the PNG {BROKEN}"),
    "a jpeg's start alone": (b"\xff\xd8\xff\xe0", f"the JPEG {BROKEN}"),
    "a jpeg without frame": (b"\xff\xd8\xff\xd9", f"the JPEG {BROKEN}"),
    "a jpeg with two frames": (
        WHOLE["jpeg"].replace(b"\xff\xc0", b"\xff\xc0\0\x0b\x08\0\x01\0\x01\x01\x01\x11\0\xff\xc0", 1),
        f"the JPEG {BROKEN}",
    ),
    "a jpeg without height": (jpeg_of(17, 0), "it has no pixels (17 x 0)"),
    "a jpeg with a segment of no length": (b"\xff\xd8\xff\xe0\0\0" + WHOLE["jpeg"][2:], f"the JPEG {BROKEN}"),
    "a gif without frames": (gif(4, 4, BLACK, []), f"the GIF {BROKEN}"),
    "a gif without size": (gif(0, 0, BLACK, [gif_frame(PIXELS[:0, :0, 0])]), "it has no pixels (0 x 0)"),
    "a gif with garbage between blocks": (gif(4, 4, BLACK, [b"?", gif_frame(PIXELS[:4, :4, 0] % 4)]), BROKEN),
    "a gif with garbage for pixels": (
        gif(17, 13, BLACK, [gif_frame(PIXELS[..., 0] % 4)[:18] + b"\x02\x05\xff\xff\xff\xff\xff\0"]),
        f"the GIF {BROKEN}",
    ),
    "a webp without picture": (webp_of(4, 4), f"the WebP {BROKEN}"),
    "a webp of an unknown chunk": (b"RIFF\x0c\0\0\0WEBPXXXX\0\0\0\0", f"the WebP {BROKEN}"),
    "an empty webp": (b"RIFF\x04\0\0\0WEBP", f"the WebP {BROKEN}"),
    "a bmp's start alone": (b"BM", f"the BMP {BROKEN}"),
    "a bmp without width": (bmp_of(0, 4), "it has no pixels (0 x 4)"),
    "a bmp of unknown compression": (bmp_of(4, 4)[:30] + b"\x63\0\0\0" + bmp_of(4, 4)[34:], f"the BMP {BROKEN}"),
    "a bmp without pixels": (bmp_of(4, 4), f"the BMP {BROKEN}"),
    "a bmp with an unknown header": (b"BM" + b"\xff" * 60, ""),
}


@pytest.mark.timeout(30)
@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    data, sentence = REFUSED[name]
    with pytest.raises(RequestError) as refused:
        decode(data)
    assert sentence in str(refused.value)


def test_limits_are_settings() -> None:
    decode(WHOLE["png"], MediaConfig(max_pixels=13 * 17, max_request_pixels=13 * 17))
    with pytest.raises(RequestError, match=r"17 x 13 pixels, more than 220 in all \(media.max_pixels\)"):
        decode(WHOLE["png"], MediaConfig(max_pixels=13 * 17 - 1))
    with pytest.raises(RequestError, match=r"together more than 220 pixels \(media.max_request_pixels\)"):
        decode(WHOLE["png"], MediaConfig(max_request_pixels=13 * 17 - 1))
