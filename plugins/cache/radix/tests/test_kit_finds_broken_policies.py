"""The random test of the conformance kit tells a broken policy from a working one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from pymllm.interfaces import CacheContext, CacheKey, CacheStats, Hit, InsertInfo
from pymllm.testing.cache_machine import cache_machine
from pymllm_cache_radix.plugin import RadixOptions
from pymllm_cache_radix.policy import RadixCache


class Radix(RadixCache):
    def check_integrity(self) -> None:
        """Off: the kit has to see it from outside."""


class IgnoresImages(Radix):
    def match(self, key: CacheKey) -> Hit:
        return super().match(replace(key, media=()))

    def insert(self, key: CacheKey, pages: Sequence[int], info: InsertInfo) -> Hit:
        return super().insert(replace(key, media=()), pages, info)


class IgnoresNamespaces(Radix):
    def match(self, key: CacheKey) -> Hit:
        return super().match(replace(key, namespace=""))

    def insert(self, key: CacheKey, pages: Sequence[int], info: InsertInfo) -> Hit:
        return super().insert(replace(key, namespace=""), pages, info)


class ForgetsTheLastPage(Radix):
    def match(self, key: CacheKey) -> Hit:
        return super().match(replace(key, tokens=key.tokens[: len(key) - self.context.page_size]))


class DoesNotLock(Radix):
    def lock(self, hit: Hit) -> None:
        pass

    unlock = lock


class LocksOnce(Radix):
    def lock(self, hit: Hit) -> None:
        if hit.node and not hit.node.locks:  # type: ignore[attr-defined]
            super().lock(hit)

    def unlock(self, hit: Hit) -> None:
        if hit.node and hit.node.locks:  # type: ignore[attr-defined]
            super().unlock(hit)


class NeverUnlocks(Radix):
    def unlock(self, hit: Hit) -> None:
        pass


class TakesDuplicates(Radix):
    def insert(self, key: CacheKey, pages: Sequence[int], info: InsertInfo) -> Hit:
        hit = super().insert(key, pages, info)
        return replace(hit, pages=tuple(pages[: len(hit.pages)]))


class EvictsOneLess(Radix):
    def evict(self, pages: int) -> list[int]:
        return super().evict(pages - 1)


class EvictsInSecret(Radix):
    def evict(self, pages: int) -> list[int]:
        super().evict(1)
        return super().evict(pages)


class DoesNotReset(Radix):
    def reset(self) -> list[int]:
        return []


class CountsLockedPagesAsEvictable(Radix):
    def stats(self) -> CacheStats:
        stats = super().stats()
        return replace(stats, evictable_pages=stats.cached_pages)


class DoesNotCountEvictions(Radix):
    def stats(self) -> CacheStats:
        return replace(super().stats(), evicted_pages=0)


@pytest.mark.parametrize("policy", Radix.__subclasses__())
def test_a_broken_policy_fails(policy: type[RadixCache]) -> None:
    machine = cache_machine(lambda page_size, pages: policy(RadixOptions(), CacheContext(page_size, pages)))
    quick = settings(
        max_examples=300,
        stateful_step_count=40,
        deadline=None,
        derandomize=True,
        phases=[Phase.generate],
        report_multiple_bugs=False,
    )
    with pytest.raises(AssertionError):
        run_state_machine_as_test(machine, settings=quick)
