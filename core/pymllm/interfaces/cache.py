"""The contract of a cache policy: which computed KV pages are kept, shared and dropped.

A policy sees page numbers and keys, never tensors, and needs no GPU to be tested.

Rules:
- ``factory(options, context)`` builds a policy from its options and a :class:`CacheContext`.
- Only whole pages are cached. Page i of a key covers tokens [i * page_size, (i + 1) * page_size).
- **Ownership.** A page belongs to a request, to the policy, or to the free list, and to one of them
  only. ``insert`` passes pages from a request to the policy; ``evict`` and ``reset`` pass them from the
  policy to the free list. A request that uses pages of the policy must hold a lock on them.
- A locked page is never evicted. Locks nest; each ``lock`` is undone by one ``unlock``.
- A page may be matched only by a key whose tokens, media digests and namespace are all the same up to
  the page's end.
"""

from __future__ import annotations

import hashlib
import struct
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np


@dataclass(frozen=True)
class CacheContext:
    """What a policy is built for. pages: usable pages of the pool (the scrap page not counted)."""

    page_size: int
    pages: int


@dataclass(frozen=True)
class MediaSpan:
    """Tokens [start, start + length) stand for an image or video with this content digest (the full
    digest, processor settings included)."""

    start: int
    length: int
    digest: bytes


@dataclass(frozen=True)
class CacheKey:
    """What a page's KV depends on: the tokens, the media they stand for, and the namespace (adapter,
    tenant, weights epoch)."""

    tokens: Sequence[int]
    media: tuple[MediaSpan, ...] = ()
    namespace: str = ""

    @cached_property
    def _array(self) -> np.ndarray:
        return np.asarray(self.tokens, dtype=np.int64)

    def __len__(self) -> int:
        return len(self.tokens)

    def pages(self, page_size: int) -> list[bytes]:
        """The identity of each whole page, in order: equal bytes at equal indices (and a shared prefix)
        mean equal KV. The first page's identity holds the namespace."""
        tokens = self._array
        count = len(tokens) // page_size
        raw = tokens[: count * page_size].tobytes()
        step = page_size * tokens.itemsize
        labels = [raw[i * step : (i + 1) * step] for i in range(count)]
        for span in self.media:
            first, last = span.start // page_size, (span.start + span.length - 1) // page_size
            for i in range(first, min(last + 1, count)):
                offset = i * page_size - span.start
                labels[i] += struct.pack("<qq", offset, span.length) + span.digest
        if labels and self.namespace:
            labels[0] = hashlib.sha256(self.namespace.encode()).digest() + labels[0]
        return labels


@dataclass(frozen=True)
class Hit:
    """A cached prefix. pages: one number per page, in order; node: the policy's own handle."""

    pages: tuple[int, ...] = ()
    node: object = None


@dataclass(frozen=True)
class InsertInfo:
    """What a policy may weigh. priority: the request's (higher is more important)."""

    priority: int = 0


@dataclass(frozen=True)
class CacheStats:
    """cached_pages: owned by the policy, locked ones included; evictable_pages: could be dropped now;
    evicted_pages: dropped by ``evict`` since the start."""

    cached_pages: int = 0
    evictable_pages: int = 0
    evicted_pages: int = 0


class CachePolicy(ABC):
    """Base of every policy. reuses: False for a policy that never yields a hit, so that the scheduler
    does not wait for pages that will not come."""

    reuses: bool = True

    def __init__(self, context: CacheContext) -> None:
        self.context = context

    @abstractmethod
    def match(self, key: CacheKey) -> Hit:
        """The longest cached prefix of the key, in whole pages (counts as a use of it). Not locked."""

    @abstractmethod
    def lock(self, hit: Hit) -> None:
        """Keep the hit's pages from being evicted."""

    @abstractmethod
    def unlock(self, hit: Hit) -> None:
        """Undo one ``lock`` of this hit."""

    @abstractmethod
    def insert(self, key: CacheKey, pages: Sequence[int], info: InsertInfo) -> Hit:
        """Take over the first ``len(pages)`` pages of a key, whose KV is computed.

        Returns a hit over the canonical pages. For each i below ``len(hit.pages)``: if ``hit.pages[i]``
        equals ``pages[i]``, the page is now the policy's (or was already); if it differs, the policy has
        that content elsewhere, ``pages[i]`` stays the caller's to free, and the canonical page is to be
        used from now on. Pages past the hit stay the caller's. The hit is not locked.
        """

    @abstractmethod
    def evict(self, pages: int) -> list[int]:
        """Drop at least ``pages`` unlocked pages if there are that many, otherwise all unlocked ones.
        Returns the dropped page numbers, which pass to the caller."""

    @abstractmethod
    def reset(self) -> list[int]:
        """Drop every unlocked page and return their numbers (weights changed, or the user asked)."""

    @abstractmethod
    def stats(self) -> CacheStats:
        """Counts, in O(1)."""

    @abstractmethod
    def check_integrity(self) -> None:
        """Raise AssertionError with a sentence if the policy's own bookkeeping does not add up."""
