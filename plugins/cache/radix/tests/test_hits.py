"""A hit stays right while the tree changes under it, and misuse of one is noticed."""

from __future__ import annotations

import pytest

from pymllm.interfaces import CacheContext, CacheKey, CacheStats, Hit, InsertInfo
from pymllm_cache_radix.plugin import RadixOptions
from pymllm_cache_radix.policy import RadixCache


@pytest.fixture
def policy() -> RadixCache:
    policy = RadixCache(RadixOptions(page_size=1), CacheContext(page_size=1, pages=64))
    policy.insert(CacheKey(range(1, 9)), range(1, 9), InsertInfo())
    return policy


def test_locks_taken_before_and_after_splits_are_undone_exactly(policy: RadixCache) -> None:
    whole = policy.match(CacheKey(range(1, 9)))
    policy.lock(whole)
    parts = [policy.match(CacheKey(range(1, end))) for end in (4, 7, 2, 6)]  # each splits the locked node
    for part in parts:
        policy.lock(part)
    policy.check_integrity()
    assert policy.stats() == CacheStats(8, 0, 0)
    policy.unlock(whole)  # the longest part holds 1..6
    assert sorted(policy.evict(64)) == [7, 8]
    for part, dropped in ((parts[1], [6]), (parts[0], []), (parts[3], [2, 3, 4, 5]), (parts[2], [1])):
        policy.unlock(part)
        assert sorted(policy.evict(64)) == dropped
        policy.check_integrity()


def test_an_extension_does_not_widen_an_earlier_lock(policy: RadixCache) -> None:
    hit = policy.match(CacheKey(range(1, 9)))
    policy.lock(hit)
    policy.insert(CacheKey(range(1, 12)), range(1, 12), InsertInfo())
    assert sorted(policy.evict(64)) == [9, 10, 11]
    policy.unlock(hit)
    assert sorted(policy.evict(64)) == [*range(1, 9)]


def test_a_hit_that_lost_pages_before_its_lock_is_noticed(policy: RadixCache) -> None:
    hit = policy.match(CacheKey(range(1, 9)))
    policy.evict(1)
    with pytest.raises(AssertionError, match="evicted before it was locked"):
        policy.lock(hit)
    policy.evict(64)
    with pytest.raises(AssertionError, match="evicted before it was locked"):
        policy.lock(hit)
    policy.check_integrity()


def test_one_unlock_too_many_is_noticed(policy: RadixCache) -> None:
    hit = policy.match(CacheKey(range(1, 4)))
    policy.lock(hit)
    policy.unlock(hit)
    with pytest.raises(AssertionError, match="unlocked more often"):
        policy.unlock(hit)


def test_another_policys_hit_is_noticed(policy: RadixCache) -> None:
    with pytest.raises(AssertionError, match="another policy's"):
        policy.lock(Hit((1,), "a handle"))


def test_a_page_inserted_twice_is_noticed(policy: RadixCache) -> None:
    policy.insert(CacheKey((50,)), [3], InsertInfo())
    with pytest.raises(AssertionError, match="in the tree twice"):
        policy.check_integrity()
