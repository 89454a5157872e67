"""Works, but another distribution claims the same name."""

from __future__ import annotations

from pymllm.plugin import CachePolicySpec, hookimpl


@hookimpl
def pymllm_cache() -> CachePolicySpec:
    return CachePolicySpec(factory="pymllm_cache_chunk.policy:ChunkCache", summary="twin b")
