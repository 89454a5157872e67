"""What the plugin offers; nothing heavy is imported here."""

from dataclasses import dataclass
from enum import Enum

from pymllm.plugin import CacheOptions, CachePolicySpec, hookimpl


class Eviction(str, Enum):
    """Which unlocked pages go first: least recently used, least often used, oldest, least important."""

    lru = "lru"
    lfu = "lfu"
    fifo = "fifo"
    priority = "priority"


@dataclass
class RadixOptions(CacheOptions):
    """Keys of ``cache`` under ``plugin: radix``. eviction: the rule by which pages are dropped."""

    eviction: Eviction = Eviction.lru


@hookimpl
def pymllm_cache() -> CachePolicySpec:
    return CachePolicySpec(
        config=RadixOptions,
        factory="pymllm_cache_radix.policy:RadixCache",
        summary="prefix reuse through a radix tree of pages",
    )
