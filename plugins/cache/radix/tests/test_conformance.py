"""The radix policy keeps the cache contract under each of its eviction rules."""

from __future__ import annotations

import pytest

from pymllm.interfaces import CacheContext
from pymllm.testing.cache import CachePolicyConformance
from pymllm.testing.cache_machine import MakePolicy
from pymllm_cache_radix.plugin import Eviction, RadixOptions
from pymllm_cache_radix.policy import RadixCache


@pytest.mark.parametrize("eviction", list(Eviction))
class TestRadix(CachePolicyConformance):
    @pytest.fixture
    def make_policy(self, eviction: Eviction) -> MakePolicy:
        options = RadixOptions(eviction=eviction)
        return lambda page_size, pages: RadixCache(options, CacheContext(page_size, pages))
