"""Every format and mode against pixels worked out by hand, and against what users of transformers see."""

from __future__ import annotations

import io
import struct
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageOps

from media_files import (
    GRAY,
    GRAY_ALPHA,
    PALETTE,
    RGB,
    RGB_ALPHA,
    bmp,
    chunk,
    exif,
    gif,
    gif_frame,
    noise,
    png,
    rgb_png,
    saved,
)
from pymllm.errors import RequestError
from pymllm.media import Media, Picture, offline_image

Load = Callable[..., list[Media]]

FLAT = np.repeat(np.repeat(np.array([[[250, 10, 10], [10, 200, 30]], [[20, 20, 240], [128, 128, 128]]]), 16, 0), 16, 1)
FLAT = FLAT.astype(np.uint8)
"""Four squares of one colour each: what lossy formats hardly change, but at the edges."""
INNER = [np.s_[rows, columns] for rows in (slice(4, 12), slice(20, 28)) for columns in (slice(4, 12), slice(20, 28))]


def decoded(load: Load, value: object) -> np.ndarray:
    [picture] = load(offline_image(value, "here"))
    assert isinstance(picture, Picture)
    pixels = picture.pixels
    assert pixels.dtype == np.uint8
    assert pixels.flags.c_contiguous
    assert not pixels.flags.writeable
    assert (picture.height, picture.width, 3) == pixels.shape
    return pixels


def on_white(colour: np.ndarray, alpha: np.ndarray) -> np.ndarray:
    """Composited in float64."""
    share = alpha[..., None] / 255.0
    return np.rint(colour * share + 255.0 * (1 - share)).astype(np.uint8)


def test_lossless_formats(load: Load) -> None:
    pixels = noise(5, 7)
    for file in (rgb_png(pixels), bmp(pixels), saved(Image.fromarray(pixels), "WEBP", lossless=True)):
        assert (decoded(load, file) == pixels).all()
        [again] = load(offline_image(io.BytesIO(file).getvalue(), "here"))
        assert again == Picture.of(pixels.copy())


@pytest.mark.parametrize("options", [{"quality": 95}, {"quality": 95, "progressive": True}, {"subsampling": 0}])
def test_jpeg(load: Load, options: dict[str, Any]) -> None:
    pixels = decoded(load, saved(Image.fromarray(FLAT), "JPEG", **options))
    for inner in INNER:
        assert abs(pixels[inner].astype(int) - FLAT[inner]).max() <= 6


def test_lossy_webp(load: Load) -> None:
    pixels = decoded(load, saved(Image.fromarray(FLAT), "WEBP", quality=100))
    for inner in INNER:
        assert abs(pixels[inner].astype(int) - FLAT[inner]).max() <= 8


PALETTE4 = [(255, 0, 0), (0, 255, 0), (0, 0, 255), (9, 8, 7)]
INDICES = np.array([[0, 1, 2], [3, 2, 1]])


def test_gif(load: Load) -> None:
    assert (decoded(load, gif(3, 2, PALETTE4, [gif_frame(INDICES)])) == np.array(PALETTE4)[INDICES]).all()


def test_of_an_animation_the_first_frame(load: Load) -> None:
    file = gif(3, 2, PALETTE4, [gif_frame(INDICES), gif_frame(3 - INDICES)])
    assert (decoded(load, file) == np.array(PALETTE4)[INDICES]).all()


def test_transparent_gif(load: Load) -> None:
    file = gif(3, 2, PALETTE4, [gif_frame(INDICES, transparent=2)])
    assert (decoded(load, file) == np.array([*PALETTE4[:2], (255,) * 3, PALETTE4[3]])[INDICES]).all()


@pytest.mark.parametrize("depth", [1, 2, 4, 8])
def test_grayscale_png(load: Load, depth: int) -> None:
    most = 2**depth - 1
    samples = [0, most, most // 2, 1]
    bits = "".join(f"{sample:0{depth}b}" for sample in samples)
    row = int(bits.ljust(-(-len(bits) // 8) * 8, "0"), 2).to_bytes(-(-len(bits) // 8), "big")
    gray = np.array([round(sample * 255 / most) for sample in samples])
    expected = np.repeat(gray[None, :, None], 3, 2)
    assert (decoded(load, png(4, 1, depth, GRAY, [row])) == expected).all()
    without = expected.copy()
    without[:, gray == gray[2]] = 255
    key = chunk(b"tRNS", struct.pack(">H", samples[2]))
    assert (decoded(load, png(4, 1, depth, GRAY, [row], [key])) == without).all()


def test_sixteen_bit_grayscale_is_scaled(load: Load) -> None:
    samples = np.arange(65536).reshape(256, 256)
    expected = np.repeat(np.rint(samples / 257.0).astype(np.uint8)[..., None], 3, 2)
    rows = [row.astype(">u2").tobytes() for row in samples]
    assert (decoded(load, png(256, 256, 16, GRAY, rows)) == expected).all()
    key = chunk(b"tRNS", struct.pack(">H", 515))
    expected[2, 3] = 255
    assert (decoded(load, png(256, 256, 16, GRAY, rows, [key])) == expected).all()


def test_sixteen_bit_colour(load: Load) -> None:
    samples = np.array([[[0, 65535, 0x1234]], [[0x80FF, 0x8000, 0x00FF]]], np.uint16)
    pixels = decoded(load, png(1, 2, 16, RGB, [row.astype(">u2").tobytes() for row in samples]))
    assert abs(pixels - samples / 257.0).max() <= 1
    key = chunk(b"tRNS", struct.pack(">HHH", *samples[0, 0]))
    without = decoded(load, png(1, 2, 16, RGB, [row.astype(">u2").tobytes() for row in samples], [key]))
    assert (without[0] == 255).all()
    assert (without[1] == pixels[1]).all()


def test_palette_png(load: Load) -> None:
    palette = chunk(b"PLTE", b"".join(bytes(colour) for colour in PALETTE4))
    rows = [bytes(row.tolist()) for row in INDICES]
    assert (decoded(load, png(3, 2, 8, PALETTE, rows, [palette])) == np.array(PALETTE4)[INDICES]).all()
    alphas = np.array([255, 0, 100, 255])
    transparent = png(3, 2, 8, PALETTE, rows, [palette, chunk(b"tRNS", bytes(alphas[:3].tolist()))])
    assert (decoded(load, transparent) == on_white(np.array(PALETTE4)[INDICES], alphas[INDICES])).all()


def test_alpha_is_composited_on_white(load: Load) -> None:
    rgba = np.random.default_rng(3).integers(0, 256, (16, 16, 4), np.uint8)
    rgba[0, :, 3], rgba[1, :, 3] = 0, 255
    expected = on_white(rgba[..., :3], rgba[..., 3])
    assert (decoded(load, png(16, 16, 8, RGB_ALPHA, [row.tobytes() for row in rgba])) == expected).all()
    assert (decoded(load, saved(Image.fromarray(rgba), "WEBP", lossless=True, exact=True)) == expected).all()
    assert (decoded(load, rgba) == expected).all()
    la = rgba[..., 2:]
    gray = on_white(np.repeat(la[..., :1], 3, 2), la[..., 1])
    assert (decoded(load, png(16, 16, 8, GRAY_ALPHA, [row.tobytes() for row in la])) == gray).all()


def test_a_transparent_colour(load: Load) -> None:
    pixels = noise(4, 4)
    pixels[2, 1] = pixels[0, 0]
    key = chunk(b"tRNS", struct.pack(">HHH", *pixels[0, 0]))
    expected = pixels.copy()
    expected[2, 1] = expected[0, 0] = 255
    assert (decoded(load, png(4, 4, 8, RGB, [row.tobytes() for row in pixels], [key])) == expected).all()


def test_cmyk_jpeg_and_one_bit_as_transformers_users_see_them(load: Load) -> None:
    cmyk = saved(Image.fromarray(FLAT).convert("CMYK"), "JPEG", quality=95)
    bit = saved(Image.fromarray(FLAT).convert("1"), "BMP")
    gray = saved(Image.fromarray(FLAT).convert("L"), "JPEG")
    for file in (cmyk, bit, gray):
        assert (decoded(load, file) == np.asarray(Image.open(io.BytesIO(file)).convert("RGB"))).all()
    assert abs(decoded(load, cmyk).astype(int) - FLAT).max() <= 8


F = [
    "......",
    ".####.",
    ".#....",
    ".###..",
    ".#....",
    "......",
    "......",
]
"""The letter F, which is like itself in no other position."""

STORED = {
    1: lambda seen: seen,
    2: lambda seen: [row[::-1] for row in seen],
    3: lambda seen: [row[::-1] for row in seen[::-1]],
    4: lambda seen: seen[::-1],
    5: lambda seen: ["".join(column) for column in zip(*seen)],
    6: lambda seen: ["".join(column) for column in zip(*seen)][::-1],
    7: lambda seen: ["".join(column)[::-1] for column in zip(*seen)][::-1],
    8: lambda seen: ["".join(column)[::-1] for column in zip(*seen)],
}
"""How a camera stores what is seen as the value (Exif 2.3): for 6, the first row stored is the right side."""


def drawn(rows: list[str]) -> np.ndarray:
    return np.array([[(0, 0, 0) if dot == "#" else (255, 255, 255) for dot in row] for row in rows], np.uint8)


@pytest.mark.parametrize("value", range(1, 9))
def test_exif_orientations(load: Load, value: int) -> None:
    stored = Image.fromarray(drawn(STORED[value](F)))
    for kind, options in (("PNG", {}), ("WEBP", {"lossless": True})):
        file = saved(stored, kind, exif=exif(value), **options)
        assert (decoded(load, file) == drawn(F)).all()
        assert (decoded(load, file) == np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(file))))).all()
    large = stored.resize((stored.width * 16, stored.height * 16), Image.Resampling.NEAREST)
    pixels = decoded(load, saved(large, "JPEG", quality=95, exif=exif(value)))
    assert abs(pixels[8::16, 8::16].astype(int) - drawn(F)).max() <= 8
    assert (decoded(load, Image.open(io.BytesIO(saved(stored, "PNG", exif=exif(value))))) == drawn(F)).all()


def test_exif_behind_the_pixels(load: Load) -> None:
    stored = drawn(STORED[6](F))
    file = png(7, 6, 8, RGB, [row.tobytes() for row in stored], after=chunk(b"eXIf", exif(6)[6:]))
    assert (decoded(load, file) == drawn(F)).all()


@pytest.mark.parametrize(
    "data", [b"", b"x", b"Exif\0\0", exif(6)[:-8], b"Exif\0\0II*\0\xff\xff\xff\xff", exif(0), exif(9)]
)
@pytest.mark.filterwarnings("ignore:Corrupt EXIF data")
def test_unreadable_exif_is_no_orientation(load: Load, data: bytes) -> None:
    stored = drawn(F)
    files = [png(6, 7, 8, RGB, [row.tobytes() for row in stored], [chunk(b"eXIf", data)])]
    files.append(saved(Image.fromarray(stored), "WEBP", lossless=True, exif=data or b"\0"))
    for file in files:
        assert (decoded(load, file) == stored).all()


def test_arrays_and_images(load: Load) -> None:
    pixels = noise(3, 4)
    gray = np.repeat(pixels[..., :1], 3, 2)
    assert (decoded(load, pixels) == pixels).all()
    assert (decoded(load, pixels[::-1, ::-1]) == pixels[::-1, ::-1]).all()
    assert (decoded(load, pixels[..., 0]) == gray).all()
    assert (decoded(load, pixels[..., :1]) == gray).all()
    for mode in ("RGB", "RGBA", "RGBX", "YCbCr", "HSV", "CMYK", "L", "1", "P"):
        image = Image.fromarray(pixels).convert(mode)
        assert (decoded(load, image) == np.asarray(image.convert("RGB"))).all(), mode
    assert (decoded(load, Image.fromarray(pixels.astype(np.uint16)[..., 0] * 257)) == gray).all()
    pixels[0, 0] += 1  # what was loaded is not touched, and neither is this
    assert pixels.flags.writeable


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        (np.zeros((2, 2, 3), np.float32), "the array holds float32; pixels must be uint8"),
        (np.zeros((2, 2, 3), bool), "the array holds bool"),
        (np.zeros((2, 2, 3), np.uint16), "the array holds uint16"),
        (np.zeros((2, 2, 2), np.uint8), "has shape [2, 2, 2]; it must be"),
        (np.zeros((3, 20, 20), np.uint8), "has shape [3, 20, 20]; it must be"),
        (np.zeros((5, 2, 2, 3), np.uint8), "has shape [5, 2, 2, 3]; it must be"),
        (np.zeros(5, np.uint8), "has shape [5]; it must be"),
        (np.zeros((0, 2, 3), np.uint8), "it has no pixels (2 x 0)"),
        (np.zeros((2, 402), np.uint8), "it is 402 x 2 pixels; one side may be 200 times the other"),
        (Image.new("I", (2, 2)), "mode I are not supported"),
        (Image.new("F", (2, 2)), "mode F are not supported"),
        (Image.new("LAB", (2, 2)), "mode LAB are not supported"),
        (Image.new("RGB", (0, 2)), "it has no pixels (0 x 2)"),
    ],
)
def test_arrays_and_images_that_are_no_pictures(load: Load, value: object, sentence: str) -> None:
    with pytest.raises(RequestError) as refused:
        load(offline_image(value, "images[1]"))
    assert str(refused.value).startswith("images[1]: ")
    assert sentence in str(refused.value)


def test_equal_pictures_are_one(load: Load) -> None:
    """SHA-256 of size and pixels: the same from another file, another for other pixels, or another size."""
    pixels = noise(4, 6)
    first, second, third = load(
        *(offline_image(x, "x") for x in (rgb_png(pixels), bmp(pixels), Image.fromarray(pixels)))
    )
    assert len({first.digest, second.digest, third.digest}) == 1
    assert len(first.digest) == 32
    assert first == second == third
    changed = pixels.copy()
    changed[3, 5, 2] ^= 1
    others = load(*(offline_image(x, "x") for x in (changed, pixels.reshape(6, 4, 3), pixels.reshape(2, 12, 3))))
    assert len({first.digest, *(picture.digest for picture in others)}) == 4


def test_no_warning_is_given(load: Load) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert (decoded(load, rgb_png(noise(2, 2))) == noise(2, 2)).all()
