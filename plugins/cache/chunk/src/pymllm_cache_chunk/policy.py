"""The chunk cache policy: no page outlives its request."""

from __future__ import annotations

from collections.abc import Sequence

from pymllm.interfaces import CacheContext, CacheKey, CachePolicy, CacheStats, Hit, InsertInfo
from pymllm.plugin import CacheOptions


class ChunkCache(CachePolicy):
    """Takes no page and never hits, so every request computes its whole prompt and keeps its pages to itself."""

    reuses = False

    def __init__(self, options: CacheOptions, context: CacheContext) -> None:
        super().__init__(context)

    def match(self, key: CacheKey) -> Hit:
        return Hit()

    def lock(self, hit: Hit) -> None:
        pass

    def unlock(self, hit: Hit) -> None:
        pass

    def insert(self, key: CacheKey, pages: Sequence[int], info: InsertInfo) -> Hit:
        return Hit()

    def evict(self, pages: int) -> list[int]:
        return []

    def reset(self) -> list[int]:
        return []

    def stats(self) -> CacheStats:
        return CacheStats()

    def check_integrity(self) -> None:
        pass
