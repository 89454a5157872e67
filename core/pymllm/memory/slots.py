"""The free list of per-request rows (page-table rows, sampler state, recurrent state)."""

from __future__ import annotations

from heapq import heappop, heappush


class SlotPool:
    """Hands out the slots 0..``slots`` - 1, the lowest free one first, so that the used rows stay dense."""

    def __init__(self, slots: int) -> None:
        assert slots >= 0, f"a pool cannot have {slots} slots"
        self._size = slots
        self._free = list(range(slots))  # a heap: ascending order is one
        self._is_free = bytearray(b"\1") * slots

    @property
    def size(self) -> int:
        """Slots, free or not."""
        return self._size

    @property
    def free_count(self) -> int:
        """Slots that ``allocate`` could hand out now."""
        return len(self._free)

    def allocate(self) -> int | None:
        """Take the lowest free slot; None when all are in use."""
        if not self._free:
            return None
        slot = heappop(self._free)
        self._is_free[slot] = 0
        return slot

    def free(self, slot: int) -> None:
        """Give a slot back. AssertionError for a slot that is free already or was never this pool's."""
        assert 0 <= slot < self._size, f"slot {slot} is not one of this pool's slots 0..{self._size - 1}"
        assert not self._is_free[slot], f"slot {slot} was freed twice"
        self._is_free[slot] = 1
        heappush(self._free, slot)
