"""Keeps what came first. Where prompts come round in a loop longer than the pool, LRU always drops the one
that is needed next; this policy keeps the beginning of the loop."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256
from itertools import islice, takewhile

from pymllm.interfaces import CacheContext, CacheKey, CachePolicy, CacheStats, Hit, InsertInfo
from pymllm.plugin import CacheOptions


class LifoCache(CachePolicy):
    """Content -> page, in order of arrival. A page comes after those it continues and is dropped before
    them, so whatever is cached can be reached."""

    def __init__(self, options: CacheOptions, context: CacheContext) -> None:
        super().__init__(context)
        self.pages: dict[bytes, int] = {}
        self.locks: Counter[bytes] = Counter()
        self.evicted = 0

    def match(self, key: CacheKey) -> Hit:
        return self._hit(takewhile(self.pages.__contains__, self._digests(key)))

    def insert(self, key: CacheKey, pages: Sequence[int], info: InsertInfo) -> Hit:
        digests = list(islice(self._digests(key), len(pages)))
        for digest, page in zip(digests, pages):
            self.pages.setdefault(digest, page)
        return self._hit(digests)

    def lock(self, hit: Hit) -> None:
        self.locks.update(hit.node or ())

    def unlock(self, hit: Hit) -> None:
        for digest in hit.node or ():
            self.locks[digest] -= 1
            if not self.locks[digest]:
                del self.locks[digest]

    def evict(self, pages: int) -> list[int]:
        dropped = self._drop(pages)
        self.evicted += len(dropped)
        return dropped

    def reset(self) -> list[int]:
        return self._drop(len(self.pages))

    def stats(self) -> CacheStats:
        return CacheStats(len(self.pages), len(self.pages) - len(self.locks), self.evicted)

    def check_integrity(self) -> None:
        assert len(set(self.pages.values())) == len(self.pages), "one page is cached twice"
        assert self.locks.keys() <= self.pages.keys(), "a page that was dropped is locked"

    def _digests(self, key: CacheKey) -> Iterator[bytes]:
        """What each page depends on: everything up to its end."""
        digest = b""
        for label in key.pages(self.context.page_size):
            digest = sha256(digest + label).digest()
            yield digest

    def _hit(self, digests: Iterable[bytes]) -> Hit:
        found = tuple(digests)
        return Hit(tuple(self.pages[digest] for digest in found), found)

    def _drop(self, count: int) -> list[int]:
        unlocked = (digest for digest in reversed(self.pages) if digest not in self.locks)
        return [self.pages.pop(digest) for digest in list(islice(unlocked, count))]
