import pytest

from pymllm.interfaces import CacheContext
from pymllm.plugin import CacheOptions
from pymllm.testing import CachePolicyConformance
from pymllm_cache_lifo.policy import LifoCache


class TestLifo(CachePolicyConformance):
    @pytest.fixture
    def make_policy(self):
        return lambda page_size, pages: LifoCache(CacheOptions(page_size), CacheContext(page_size, pages))
