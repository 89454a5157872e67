"""The chunk policy keeps the cache contract."""

from __future__ import annotations

import pytest

from pymllm.interfaces import CacheContext
from pymllm.plugin import CacheOptions
from pymllm.testing.cache import CachePolicyConformance
from pymllm.testing.cache_machine import MakePolicy
from pymllm_cache_chunk.policy import ChunkCache


class TestChunk(CachePolicyConformance):
    @pytest.fixture
    def make_policy(self) -> MakePolicy:
        return lambda page_size, pages: ChunkCache(CacheOptions(page_size), CacheContext(page_size, pages))


def test_it_declares_that_it_reuses_nothing() -> None:
    assert ChunkCache.reuses is False
