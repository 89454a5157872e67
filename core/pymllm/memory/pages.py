"""The free list of KV pages."""

from __future__ import annotations

from collections.abc import Sequence


class PagePool:
    """Hands out the pages 1..``pages`` of the KV pool, those that were freed last first.

    Page 0 is the scrap page that padded rows write to; it is never handed out. Pages that were freed together come
    back together and in their order, so that the pages of a request lie mostly next to each other in memory.
    """

    def __init__(self, pages: int) -> None:
        assert pages >= 0, f"a pool cannot have {pages} pages"
        self._size = pages
        self._free = list(range(pages, 0, -1))  # a stack
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
        """Take ``n`` free pages; None (and nothing taken) when fewer are free."""
        assert n >= 0, f"cannot allocate {n} pages"
        left = len(self._free) - n
        if left < 0:
            return None
        pages = self._free[left:]
        del self._free[left:]
        pages.reverse()
        for page in pages:
            self._is_free[page] = 0
        return pages

    def free(self, pages: Sequence[int]) -> None:
        """Give pages back. AssertionError for a page that is free already or was never this pool's."""
        for page in pages:
            assert 1 <= page <= self._size, f"page {page} is not one of this pool's pages 1..{self._size}"
            assert not self._is_free[page], f"page {page} was freed twice"
            self._is_free[page] = 1
        self._free += reversed(pages)
