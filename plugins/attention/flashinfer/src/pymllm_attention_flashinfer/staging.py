"""Page-locked host memory that a copy to the device may still be reading when it is next wanted."""

from __future__ import annotations

from types import TracebackType

import torch
from torch import Tensor


class PinnedRing:
    """A few page-locked buffers, used in turn; one is handed out again only when its last copy has ended.

    count: buffers. nbytes: size of each; grows when more is asked for.
    """

    def __init__(self, count: int, nbytes: int) -> None:
        self._buffers = [torch.empty(nbytes, dtype=torch.uint8, pin_memory=True) for _ in range(count)]
        self._events = [torch.cuda.Event() for _ in range(count)]
        self._last = 0

    def take(self, nbytes: int) -> PinnedRing:
        """Choose the next buffer; use as a context manager, which gives the buffer [>= nbytes] uint8. Copies
        from it are started on the current stream before the block ends."""
        self._last = index = (self._last + 1) % len(self._buffers)
        self._events[index].synchronize()
        if self._buffers[index].numel() < nbytes:
            self._buffers[index] = torch.empty(2 * nbytes, dtype=torch.uint8, pin_memory=True)
        return self

    def __enter__(self) -> Tensor:
        return self._buffers[self._last]

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._events[self._last].record()
