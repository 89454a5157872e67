"""The LFU policy keeps the cache contract, and drops what was matched least."""

from __future__ import annotations

import pytest

from pymllm.interfaces import CacheContext, CacheKey, InsertInfo
from pymllm.plugin import CacheOptions
from pymllm.testing import CachePolicyConformance
from pymllm_cache_lfu.policy import LfuCache


class TestLfu(CachePolicyConformance):
    @pytest.fixture
    def make_policy(self):
        return lambda page_size, pages: LfuCache(CacheOptions(page_size), CacheContext(page_size, pages))


def test_the_least_matched_page_goes_first_and_of_equals_the_oldest() -> None:
    policy = LfuCache(CacheOptions(1), CacheContext(page_size=1, pages=8))
    for page in (1, 2, 3, 4):
        policy.insert(CacheKey((page,)), [page], InsertInfo())
    for token in (1, 1, 3):
        policy.match(CacheKey((token,)))
    assert [policy.evict(1) for _ in range(5)] == [[2], [4], [3], [1], []]
