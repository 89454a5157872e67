"""The page pool hands out each page once, and notices a page that comes back wrongly."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pymllm.memory import PagePool


def test_pages_are_numbered_from_one_and_ascend() -> None:
    pool = PagePool(5)
    assert (pool.size, pool.free_count) == (5, 5)
    assert pool.allocate(3) == [1, 2, 3]
    assert pool.allocate(2) == [4, 5]
    assert (pool.size, pool.free_count) == (5, 0)


def test_too_few_free_pages_give_none_and_take_nothing() -> None:
    pool = PagePool(3)
    assert pool.allocate(4) is None
    assert pool.free_count == 3
    assert pool.allocate(3) == [1, 2, 3]
    assert pool.allocate(1) is None
    assert pool.allocate(0) == []


def test_pages_that_were_freed_together_come_back_together() -> None:
    pool = PagePool(8)
    pool.allocate(8)
    pool.free([1, 2, 3])
    pool.free([7, 5])
    assert pool.allocate(2) == [7, 5]
    assert pool.allocate(3) == [1, 2, 3]


@pytest.mark.parametrize("page", [0, -1, 4, 99])
def test_a_foreign_page_is_noticed(page: int) -> None:
    pool = PagePool(3)
    pool.allocate(3)
    with pytest.raises(AssertionError, match=f"page {page} is not one of this pool's pages 1..3"):
        pool.free([page])


@pytest.mark.parametrize("pages", [[2, 2], [3]])
def test_a_double_free_is_noticed(pages: list[int]) -> None:
    pool = PagePool(3)
    pool.allocate(2)
    with pytest.raises(AssertionError, match="freed twice"):
        pool.free(pages)


@given(st.integers(0, 12), st.lists(st.tuples(st.booleans(), st.integers(0, 6)), max_size=40))
def test_each_page_has_one_holder(size: int, steps: list[tuple[bool, int]]) -> None:
    pool = PagePool(size)
    free, used = set(range(1, size + 1)), []
    for take, n in steps:
        if take:
            pages = pool.allocate(n)
            if n > len(free):
                assert pages is None
            else:
                assert len(set(pages)) == n
                assert free.issuperset(pages)
            free -= set(pages or [])
            used += pages or []
        else:
            back, used = used[:n], used[n:]
            pool.free(back)
            free |= set(back)
        assert pool.free_count == len(free)
