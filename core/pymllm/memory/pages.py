"""The free list of KV pages."""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heappop, heappush


class PagePool:
    """Hands out the pages 1..``pages`` of the KV pool, lowest numbers first.

    Page 0 is the scrap page that padded rows write to; it is never handed out. Taking the lowest free
    numbers keeps the pages of a request mostly next to each other in memory.
    """

    def __init__(self, pages: int) -> None:
        assert pages >= 0, f"a pool cannot have {pages} pages"
        self._size = pages
        self._free = list(range(1, pages + 1))  # a heap: ascending order is one
        self._is_free = bytearray(b"\1") * (pages + 1)
        self._is_free[0] = 0

    @property
    def size(self) -> int:
        """Usable pages, free or not."""
        return self._size

    @property
    def free_count(self) -> int:
        """Pages that ``allocate`` could hand out now."""
        return len(self._free)

    def allocate(self, n: int) -> list[int] | None:
        """Take the ``n`` lowest free pages, ascending; None (and nothing taken) when fewer are free."""
        assert n >= 0, f"cannot allocate {n} pages"
        if n > len(self._free):
            return None
        pages = [heappop(self._free) for _ in range(n)]
        for page in pages:
            self._is_free[page] = 0
        return pages

    def free(self, pages: Iterable[int]) -> None:
        """Give pages back. AssertionError for a page that is free already or was never this pool's."""
        for page in pages:
            assert 1 <= page <= self._size, f"page {page} is not one of this pool's pages 1..{self._size}"
            assert not self._is_free[page], f"page {page} was freed twice"
            self._is_free[page] = 1
            heappush(self._free, page)
