"""What media become: pixels that cannot change, and the digest that stands for them."""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Pixels: TypeAlias = npt.NDArray[np.uint8]
"""[H, W, 3], or [F, H, W, 3] for frames: red, green, blue."""


@dataclass(frozen=True, slots=True)
class Picture:
    """One decoded picture. Pictures of the same size and pixels are equal, wherever they came from.

    pixels: uint8 [H, W, 3], C-contiguous, read-only. digest: 32 bytes, SHA-256 of size and pixels.
    """

    pixels: Pixels = field(compare=False, repr=False)
    digest: bytes

    @classmethod
    def of(cls, pixels: Pixels) -> Picture:
        """The picture with these pixels [H, W, 3]. It owns the array from now on."""
        pixels = _frozen(pixels)
        return cls(pixels, _digest(b"picture", pixels))

    @property
    def height(self) -> int:
        return int(self.pixels.shape[0])

    @property
    def width(self) -> int:
        return int(self.pixels.shape[1])


@dataclass(frozen=True, slots=True)
class Video:
    """The frames that were taken from one video.

    frames: uint8 [F, H, W, 3], C-contiguous, read-only. timestamps: float64 [F], seconds from the start of the
    video at which each is shown, rising. fps: frames taken for each second of the video. duration: of the
    whole video, seconds. digest: 32 bytes, SHA-256 of all of this.
    """

    frames: Pixels = field(compare=False, repr=False)
    timestamps: npt.NDArray[np.float64] = field(compare=False)
    fps: float = field(compare=False)
    duration: float = field(compare=False)
    digest: bytes

    @classmethod
    def of(cls, frames: Pixels, timestamps: npt.ArrayLike, duration: float) -> Video:
        """The video with these frames [F, H, W, 3], shown at ``timestamps`` [F]. It owns the array from now on."""
        frames = _frozen(frames)
        times = np.array(timestamps, np.float64)
        times.flags.writeable = False
        fps = len(frames) / duration
        header = struct.pack("<dd", fps, duration) + times.tobytes()
        return cls(frames, times, fps, duration, _digest(b"video" + header, frames))

    @property
    def height(self) -> int:
        return int(self.frames.shape[1])

    @property
    def width(self) -> int:
        return int(self.frames.shape[2])


Media: TypeAlias = Picture | Video


def _frozen(pixels: Pixels) -> Pixels:
    pixels = np.ascontiguousarray(pixels)
    pixels.flags.writeable = False
    return pixels


def _digest(kind: bytes, pixels: Pixels) -> bytes:
    digest = hashlib.sha256(kind + struct.pack(f"<{pixels.ndim}q", *pixels.shape))
    digest.update(pixels.data)
    return digest.digest()
