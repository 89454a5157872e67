"""Can be described, but its implementation cannot be imported."""

from __future__ import annotations

from pymllm.plugin import AttentionSpec, hookimpl


@hookimpl
def pymllm_attention() -> AttentionSpec:
    return AttentionSpec(
        priority=100,
        probe="pymllm_attention_heavy_fails:probe_that_is_not_there",
        factory="pymllm_attention_heavy_fails:Backend",
        summary="attention that cannot be had",
    )
