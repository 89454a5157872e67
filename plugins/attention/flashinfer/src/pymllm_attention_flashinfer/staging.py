"""Page-locked host memory that a copy to the device may still be reading when it is next wanted."""

from __future__ import annotations

from types import TracebackType

import torch
from torch import Tensor

from pymllm_attention_flashinfer.requests import Ints

ALIGNMENT = 256
"""Pieces of a buffer start at multiples of that."""


def aligned(nbytes: int) -> int:
    """What a piece of that many bytes takes."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


class Pinned:
    """A page-locked buffer, handed out in pieces. Use as a context manager: copies from it are started on the
    current stream before the block ends."""

    def __init__(self, nbytes: int) -> None:
        self._copied = torch.cuda.Event()
        self._used = 0
        self._allocate(nbytes)

    def reset(self, nbytes: int) -> None:
        """Wait until the last copies have ended, and have room for that many bytes, alignment included."""
        self._copied.synchronize()
        self._used = 0
        if self._nbytes < nbytes:
            self._allocate(2 * nbytes)

    def take(self, nbytes: int) -> Tensor:
        """The next piece, [nbytes] uint8."""
        start = self._advance(nbytes)
        return self._data[start : start + nbytes]

    def take_ints(self, count: int) -> tuple[Tensor, Ints]:
        """The next piece, [count] int32, as a tensor and as an array on the same memory."""
        start = self._advance(4 * count) // 4
        return self._ints[start : start + count], self._array[start : start + count]

    def _advance(self, nbytes: int) -> int:
        start = self._used
        self._used += aligned(nbytes)
        assert self._used <= self._nbytes, "room was made for all pieces"
        return start

    def _allocate(self, nbytes: int) -> None:
        self._nbytes = aligned(nbytes)
        self._data = torch.empty(self._nbytes, dtype=torch.uint8, pin_memory=True)
        self._ints = self._data.view(torch.int32)
        self._array: Ints = self._ints.numpy()

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
