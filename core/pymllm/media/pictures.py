"""Decoding pictures with Pillow, out of bytes that anybody may have made. Runs in worker threads."""

from __future__ import annotations

import io

import numpy as np
from PIL import BmpImagePlugin, GifImagePlugin, Image, ImageFile, JpegImagePlugin, PngImagePlugin, WebPImagePlugin

from pymllm.config import MediaConfig
from pymllm.errors import RequestError
from pymllm.media.budget import Budget
from pymllm.media.checks import check_size
from pymllm.media.colours import to_rgb
from pymllm.media.formats.header import broken, read_header
from pymllm.media.formats.sniff import FILMS, PICTURES, PictureKind, sniff
from pymllm.media.formats.structure import Header
from pymllm.media.orientation import orientation, upright
from pymllm.media.picture import Picture, Pixels

_DECODERS = (BmpImagePlugin, GifImagePlugin, JpegImagePlugin, PngImagePlugin, WebPImagePlugin)
"""Imported here, so that opening a file imports (and tries) no other."""


def decode_picture(data: bytes, config: MediaConfig, budget: Budget) -> Picture:
    """The picture in a file: the first frame, turned upright. Raises RequestError."""
    kind = picture_kind(data)
    header = read_header(kind, data)
    check_size(header.width, header.height, config.max_pixels)
    budget.take_pixels(header.width * header.height)
    try:
        with open_picture(kind, header, data) as image:
            image.load()
            pixels = upright(to_rgb(image, header.depth), orientation(image))
    except RequestError:
        raise
    except Exception as error:  # whatever a decoder makes of a stranger's bytes
        raise broken(kind) from error
    return Picture.of(pixels)


def picture_kind(data: bytes) -> PictureKind:
    """The format of a picture. Raises RequestError that says what the file is instead."""
    name = sniff(data)
    for kind in PICTURES:
        if name == kind:
            return kind
    what = f"it is {name} data" if name else "the file is of no known format"
    cure = "; send it as video_url" if name in FILMS else ""
    raise RequestError(f"{what}, not a picture ({', '.join(PICTURES)}){cure}")


def open_picture(kind: PictureKind, header: Header, data: bytes) -> ImageFile.ImageFile:
    """Opened, not yet decoded. Raises RequestError if it is larger than its header was read, and whatever Pillow
    raises."""
    image = Image.open(io.BytesIO(data), formats=(kind.upper(),))
    if image.width > header.width or image.height > header.height:
        raise broken(kind)
    return image


def from_value(value: object, config: MediaConfig, budget: Budget) -> Picture:
    """The picture in a PIL image (turned upright) or in an array: uint8 [H, W], [H, W, 1], [H, W, 3] or, with
    transparency, [H, W, 4]. Raises RequestError."""
    if isinstance(value, np.ndarray):
        value = _from_array(value)
    if not isinstance(value, Image.Image):
        raise RequestError(f"it is {type(value).__name__}, not a picture")
    check_size(value.width, value.height, config.max_pixels)
    budget.take_pixels(value.width * value.height)
    try:
        value.load()
        pixels: Pixels = upright(to_rgb(value), orientation(value))
    except RequestError:
        raise
    except Exception as error:  # the caller's image may be a broken file that is decoded only now
        raise RequestError(f"the image cannot be decoded: {type(error).__name__}") from error
    return Picture.of(pixels)


def _from_array(array: np.ndarray) -> Image.Image:
    if array.dtype != np.uint8:
        raise RequestError(f"the array holds {array.dtype}; pixels must be uint8, from 0 to 255")
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    if array.ndim == 2 or (array.ndim == 3 and array.shape[2] in (3, 4)):
        height, width = array.shape[:2]
        if not height or not width:
            raise RequestError(f"it has no pixels ({width} x {height})")
        return Image.fromarray(np.ascontiguousarray(array))
    raise RequestError(f"the array has shape {list(array.shape)}; it must be [H, W], [H, W, 3] or [H, W, 4]")
