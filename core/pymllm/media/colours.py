"""Any Pillow image as 8-bit RGB.

The pixels are those of ``image.convert("RGB")``, with two exceptions. Transparency is composited on white
(``convert`` would show the colour that happens to be stored under it). Samples of 16-bit grayscale are scaled to
8 bits, round(v / 257) (``convert`` would cut all above 255).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from PIL import Image

from pymllm.errors import RequestError
from pymllm.media.picture import Pixels

MODES = ("1", "L", "LA", "La", "P", "PA", "RGB", "RGBX", "RGBA", "RGBa", "CMYK", "YCbCr", "HSV")
"""Pillow's modes that are taken, besides 16-bit grayscale."""


def to_rgb(image: Image.Image, depth: int = 8) -> Pixels:
    """uint8 [H, W, 3] of an image, perhaps read-only. depth: bits of a sample in the file. Raises RequestError for
    another mode."""
    if image.mode.startswith("I;16"):
        return _from_sixteen_bits(image)
    if image.mode not in MODES:
        raise RequestError(f"pictures of mode {image.mode} are not supported; convert it to RGB")
    key = image.info.get("transparency")
    if image.mode in ("1", "L", "RGB") and key is not None:
        return _without_key(image, key, depth)
    if not image.has_transparency_data:
        return np.asarray(image if image.mode == "RGB" else image.convert("RGB"))
    rgba = image.convert("RGBA")
    white = Image.new("RGB", image.size, "white")
    white.paste(rgba, mask=rgba.getchannel("A"))
    return np.asarray(white)


def _from_sixteen_bits(image: Image.Image) -> Pixels:
    samples = np.asarray(image).astype(np.uint32)
    gray = ((samples * 255 + 32767) // 65535).astype(np.uint8)
    key = image.info.get("transparency")
    if isinstance(key, int):
        gray[samples == key] = 255
    return np.repeat(gray[:, :, None], 3, axis=2)


def _without_key(image: Image.Image, key: object, depth: int) -> Pixels:
    """A PNG may name one colour that is transparent, in samples as the file holds them; Pillow scales the
    pixels to 8 bits and leaves the colour as it is."""
    pixels: npt.NDArray[np.uint8] = np.array(image.convert("RGB"))
    samples = [key] * 3 if isinstance(key, int) else key
    if isinstance(samples, Sequence) and len(samples) == 3:
        colour = np.array([_eight_bits(int(sample), depth, image.mode) for sample in samples])
        pixels[np.equal(pixels, colour).all(axis=2)] = 255
    return pixels


def _eight_bits(sample: int, depth: int, mode: str) -> int:
    if mode == "1":
        return 255 if sample else 0
    if depth == 16:
        return sample >> 8
    return sample * 255 // ((1 << depth) - 1) if depth < 8 else sample
