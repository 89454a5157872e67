"""How a camera was held (Exif 2.3, tag 0x0112)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from PIL import Image

from pymllm.media.picture import Pixels

_ORIENTATION = 0x0112

_TURNS: Mapping[int, Callable[[Pixels], Pixels]] = {
    2: lambda p: p[:, ::-1],
    3: lambda p: p[::-1, ::-1],
    4: lambda p: p[::-1],
    5: lambda p: p.swapaxes(0, 1),
    6: lambda p: np.rot90(p, -1),
    7: lambda p: p[::-1, ::-1].swapaxes(0, 1),
    8: lambda p: np.rot90(p),
}


def orientation(image: Image.Image) -> int:
    """1 to 8; 1, as it is stored, if the image says nothing or something unreadable. Call it after ``load``:
    some files say it behind the pixels."""
    try:
        value = image.getexif().get(_ORIENTATION)
    except Exception:  # the parser of a stranger's bytes; a picture is good without them
        return 1
    return value if isinstance(value, int) and value in _TURNS else 1


def upright(pixels: Pixels, turn: int) -> Pixels:
    """Pixels [H, W, 3] as they were seen; for 5 to 8 height and width change places."""
    return _TURNS[turn](pixels) if turn in _TURNS else pixels
