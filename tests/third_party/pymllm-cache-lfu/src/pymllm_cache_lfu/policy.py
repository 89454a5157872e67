"""A small cache policy: a flat table of pages, the least frequently matched dropped first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from heapq import heapify, heappop, heappush

from pymllm.interfaces import CacheContext, CacheKey, CachePolicy, CacheStats, Hit, InsertInfo
from pymllm.plugin import CacheOptions


@dataclass
class Entry:
    """One cached page. number: counts the inserts; children: entries that continue this one."""

    page: int
    digest: bytes
    parent: Entry | None
    number: int
    uses: int = 0
    locks: int = 0
    children: int = 0


class LfuCache(CachePolicy):
    """A page is found by the digest of all labels up to its end. Only pages that no other continues are
    dropped, so what is cached is always reachable."""

    def __init__(self, options: CacheOptions, context: CacheContext) -> None:
        super().__init__(context)
        self.table: dict[bytes, Entry] = {}
        self.inserts = self.locked = self.evicted = 0

    def match(self, key: CacheKey) -> Hit:
        entries = []
        for digest in self._digests(key):
            if digest not in self.table:
                break
            entries.append(self.table[digest])
            entries[-1].uses += 1
        return self._hit(entries)

    def lock(self, hit: Hit) -> None:
        for entry in self._entries(hit):
            self.locked += entry.locks == 0
            entry.locks += 1

    def unlock(self, hit: Hit) -> None:
        for entry in self._entries(hit):
            assert entry.locks > 0, "a hit was unlocked more often than it was locked"
            entry.locks -= 1
            self.locked -= entry.locks == 0

    def insert(self, key: CacheKey, pages: Sequence[int], info: InsertInfo) -> Hit:
        entries: list[Entry] = []
        for digest, page in zip(self._digests(key), pages):
            if digest not in self.table:
                parent = entries[-1] if entries else None
                self.inserts += 1
                self.table[digest] = Entry(page, digest, parent, self.inserts)
                if parent:
                    parent.children += 1
            entries.append(self.table[digest])
        return self._hit(entries)

    def evict(self, pages: int) -> list[int]:
        dropped = self._drop(pages)
        self.evicted += len(dropped)
        return dropped

    def reset(self) -> list[int]:
        return self._drop(len(self.table))

    def stats(self) -> CacheStats:
        return CacheStats(len(self.table), len(self.table) - self.locked, self.evicted)

    def check_integrity(self) -> None:
        entries = self.table.values()
        assert len({entry.page for entry in entries}) == len(entries), "one page has two entries"
        assert self.locked == sum(entry.locks > 0 for entry in entries), "the count of locked pages is wrong"
        for entry in entries:
            children = sum(other.parent is entry for other in entries)
            assert entry.children == children, f"page {entry.page} has {children} children, not {entry.children}"

    def _digests(self, key: CacheKey) -> Iterator[bytes]:
        digest = b""
        for label in key.pages(self.context.page_size):
            digest = blake2b(digest + label, digest_size=32).digest()
            yield digest

    def _hit(self, entries: list[Entry]) -> Hit:
        return Hit(tuple(entry.page for entry in entries), tuple(entries))

    def _entries(self, hit: Hit) -> tuple[Entry, ...]:
        entries = hit.node or ()
        assert isinstance(entries, tuple), "the hit is another policy's"
        return entries

    def _drop(self, count: int) -> list[int]:
        def rank(entry: Entry) -> tuple[int, int, Entry]:
            return entry.uses, entry.number, entry  # numbers are unique: entries are never compared

        heap = [rank(entry) for entry in self.table.values() if not entry.children and not entry.locks]
        heapify(heap)
        dropped: list[int] = []
        while heap and len(dropped) < count:
            entry = heappop(heap)[-1]
            del self.table[entry.digest]
            dropped.append(entry.page)
            parent = entry.parent
            if parent:
                parent.children -= 1
                if not parent.children and not parent.locks:
                    heappush(heap, rank(parent))
        return dropped
