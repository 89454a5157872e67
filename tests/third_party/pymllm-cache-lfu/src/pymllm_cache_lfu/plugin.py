"""Tells pymllm what this distribution offers, without importing the policy."""

from __future__ import annotations

from pymllm.plugin import CacheOptions, CachePolicySpec, hookimpl


@hookimpl
def pymllm_cache() -> CachePolicySpec:
    return CachePolicySpec(
        config=CacheOptions,
        factory="pymllm_cache_lfu.policy:LfuCache",
        summary="a flat table of pages; the least frequently matched are dropped first",
    )
