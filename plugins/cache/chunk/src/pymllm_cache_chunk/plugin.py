"""What the plugin offers; nothing heavy is imported here."""

from __future__ import annotations

from pymllm.plugin import CachePolicySpec, hookimpl


@hookimpl
def pymllm_cache() -> CachePolicySpec:
    return CachePolicySpec(factory="pymllm_cache_chunk.policy:ChunkCache", summary="no prefix reuse")
