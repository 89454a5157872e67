"""Each eviction rule drops pages in the order it names. Hand-worked; a token is a page here."""

from __future__ import annotations

import pytest

from pymllm.interfaces import CacheContext, CacheKey, CachePolicy, InsertInfo
from pymllm_cache_radix.eviction import RULES
from pymllm_cache_radix.plugin import Eviction, RadixOptions
from pymllm_cache_radix.policy import RadixCache


def cache(eviction: Eviction) -> RadixCache:
    return RadixCache(RadixOptions(page_size=1, eviction=eviction), CacheContext(page_size=1, pages=64))


def put(policy: CachePolicy, *pages: int, priority: int = 0) -> None:
    """Insert the key whose tokens are its page numbers, so that a dropped page names its token."""
    policy.insert(CacheKey(pages), pages, InsertInfo(priority))


def use(policy: CachePolicy, *tokens: int) -> None:
    assert policy.match(CacheKey(tokens)).pages == tokens


def order(policy: CachePolicy) -> list[int]:
    """All pages, in the order in which they are dropped one at a time."""
    dropped = []
    while page := policy.evict(1):
        policy.check_integrity()
        dropped += page
    assert policy.stats().cached_pages == 0
    return dropped


def test_every_option_has_a_rule() -> None:
    assert {eviction.value for eviction in Eviction} == set(RULES)


def test_lru_drops_what_was_used_longest_ago() -> None:
    policy = cache(Eviction.lru)
    for page in (1, 2, 3, 4):
        put(policy, page)
    use(policy, 2)
    put(policy, 1)
    assert order(policy) == [3, 4, 2, 1]


def test_lru_keeps_a_prefix_until_its_branches_are_gone() -> None:
    policy = cache(Eviction.lru)
    put(policy, 1, 2, 3)
    put(policy, 9)
    put(policy, 1, 4)
    # 3, 2 are the oldest branch; then 9; 1 was last used together with 4 and goes after it.
    assert order(policy) == [3, 2, 9, 4, 1]


def test_lfu_drops_what_was_matched_least_and_then_what_was_used_longest_ago() -> None:
    policy = cache(Eviction.lfu)
    for page in (1, 2, 3, 4):
        put(policy, page)
    for page in (1, 1, 1, 4, 2):
        use(policy, page)
    # Matches: 3 none; 4 and 2 one each, 4 before 2; 1 three, though it is the least recent of all.
    assert order(policy) == [3, 4, 2, 1]


def test_lfu_does_not_count_an_insert_as_a_use() -> None:
    policy = cache(Eviction.lfu)
    put(policy, 1)
    put(policy, 2)
    use(policy, 2)
    for _ in range(5):
        put(policy, 1)
    assert order(policy) == [1, 2]


def test_lfu_counts_a_use_only_for_the_matched_part() -> None:
    policy = cache(Eviction.lfu)
    put(policy, 1, 2)
    put(policy, 3)
    use(policy, 1)
    use(policy, 3)
    # 2 was never matched; 1 and 3 once each, 1 first.
    assert order(policy) == [2, 1, 3]


def test_fifo_drops_in_order_of_insertion_whatever_was_used() -> None:
    policy = cache(Eviction.fifo)
    for page in (5, 2, 7, 1):
        put(policy, page)
    for page in (5, 5, 2):
        use(policy, page)
    put(policy, 5)
    assert order(policy) == [5, 2, 7, 1]


def test_fifo_splits_keep_the_time_of_insertion() -> None:
    policy = cache(Eviction.fifo)
    put(policy, 1, 2)
    put(policy, 3)
    put(policy, 1, 4)
    # 2 came first; 1 came with it but carries 4, which came last.
    assert order(policy) == [2, 3, 4, 1]


def test_priority_drops_the_lowest_first_and_then_what_was_used_longest_ago() -> None:
    policy = cache(Eviction.priority)
    for page, priority in ((1, 5), (2, -1), (3, 0), (4, 0), (5, 5)):
        put(policy, page, priority=priority)
    use(policy, 2)
    use(policy, 3)
    assert order(policy) == [2, 4, 3, 1, 5]


def test_priority_is_the_highest_of_all_inserters() -> None:
    policy = cache(Eviction.priority)
    put(policy, 1, 2, priority=0)
    put(policy, 3, priority=1)
    put(policy, 1, priority=2)
    put(policy, 3, priority=-5)
    # 1 was raised to 2, its tail 2 was not; 3 keeps its 1.
    assert order(policy) == [2, 3, 1]


@pytest.mark.parametrize("eviction", list(Eviction))
def test_only_as_many_pages_as_asked_are_dropped_from_the_tail_of_a_long_leaf(eviction: Eviction) -> None:
    policy = cache(eviction)
    put(policy, 1, 2, 3, 4, 5, 6)
    assert sorted(policy.evict(2)) == [5, 6]
    use(policy, 1, 2, 3, 4)
    assert policy.evict(0) == []
    assert sorted(policy.evict(3)) == [2, 3, 4]
    use(policy, 1)


@pytest.mark.parametrize("eviction", list(Eviction))
def test_a_leaf_unlocked_after_it_was_passed_over_is_dropped_in_its_turn(eviction: Eviction) -> None:
    policy = cache(eviction)
    put(policy, 1)
    hit = policy.match(CacheKey((1,)))
    policy.lock(hit)
    put(policy, 2)
    put(policy, 3)
    for page in (2, 3):
        for _ in range(2):
            use(policy, page)
    assert policy.evict(1) == [2]
    policy.unlock(hit)
    # Page 1 is the least recent, least used, first inserted, and of equal priority.
    assert order(policy) == [1, 3]
