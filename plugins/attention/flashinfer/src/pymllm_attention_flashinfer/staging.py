"""Page-locked host memory that a copy to the device may still be reading when it is next wanted."""

from __future__ import annotations

from types import TracebackType

import torch
from torch import Tensor

ALIGNMENT = 256
"""Pieces of a buffer start at multiples of that."""


class Pinned:
    """A page-locked buffer, handed out in pieces. Use as a context manager: copies from it are started on the
    current stream before the block ends."""

    def __init__(self, nbytes: int) -> None:
        self._data = torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)
        self._copied = torch.cuda.Event()
        self._used = 0

    def reset(self, nbytes: int) -> None:
        """Wait until the last copies have ended, and have room for that many bytes, alignment included."""
        self._copied.synchronize()
        self._used = 0
        if self._data.numel() < nbytes:
            self._data = torch.empty(2 * nbytes, dtype=torch.uint8, pin_memory=True)

    def take(self, nbytes: int) -> Tensor:
        """The next piece, [nbytes] uint8."""
        start = self._used
        self._used += -(-nbytes // ALIGNMENT) * ALIGNMENT
        assert self._used <= self._data.numel(), "room was made for all pieces"
        return self._data[start : start + nbytes]

    def __enter__(self) -> Pinned:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._copied.record()


class PinnedRing:
    """A few page-locked buffers, used in turn, so that one is rarely waited for. count: buffers. nbytes: of each."""

    def __init__(self, count: int, nbytes: int) -> None:
        self._buffers = [Pinned(nbytes) for _ in range(count)]
        self._last = 0

    def take(self, nbytes: int) -> Pinned:
        """The next buffer, free again and with room for that many bytes."""
        self._last = (self._last + 1) % len(self._buffers)
        buffer = self._buffers[self._last]
        buffer.reset(nbytes)
        return buffer
