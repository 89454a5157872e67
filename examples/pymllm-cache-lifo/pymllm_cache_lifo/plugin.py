"""What the plugin offers; pymllm imports this to describe it, so nothing heavy is imported here."""

from pymllm.plugin import CachePolicySpec, hookimpl


@hookimpl
def pymllm_cache() -> CachePolicySpec:
    return CachePolicySpec(
        factory="pymllm_cache_lifo.policy:LifoCache",
        summary="the page that came last goes first",
    )
