"""The slot pool hands out each slot once, lowest first, and notices a slot that comes back wrongly."""

from __future__ import annotations

import pytest

from pymllm.memory import SlotPool


def test_slots_are_numbered_from_zero_and_run_out() -> None:
    pool = SlotPool(2)
    assert (pool.size, pool.free_count) == (2, 2)
    assert [pool.allocate(), pool.allocate(), pool.allocate()] == [0, 1, None]
    assert (pool.size, pool.free_count) == (2, 0)


def test_the_lowest_free_slot_is_reused_first() -> None:
    pool = SlotPool(4)
    for _ in range(4):
        pool.allocate()
    for slot in (3, 0, 2):
        pool.free(slot)
    assert [pool.allocate() for _ in range(4)] == [0, 2, 3, None]


@pytest.mark.parametrize("slot", [-1, 2])
def test_a_foreign_slot_is_noticed(slot: int) -> None:
    pool = SlotPool(2)
    pool.allocate()
    with pytest.raises(AssertionError, match=f"slot {slot} is not one of this pool's slots 0..1"):
        pool.free(slot)


def test_a_double_free_is_noticed() -> None:
    pool = SlotPool(2)
    pool.free(pool.allocate() or 0)
    with pytest.raises(AssertionError, match="slot 0 was freed twice"):
        pool.free(0)
