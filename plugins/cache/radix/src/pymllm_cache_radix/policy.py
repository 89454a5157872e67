"""The radix cache policy: a compressed prefix tree over page identities.

The idea is RadixAttention's (Zheng et al., "SGLang: Efficient Execution of Structured Language Model
Programs", 2024, section 3), here over whole pages.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pymllm.interfaces import CacheContext, CacheKey, CachePolicy, CacheStats, Hit, InsertInfo
from pymllm_cache_radix.eviction import RULES, EvictionQueue
from pymllm_cache_radix.integrity import check_tree
from pymllm_cache_radix.node import Node
from pymllm_cache_radix.plugin import RadixOptions


class RadixCache(CachePolicy):
    """Keeps every inserted page until pages run out, then drops unlocked leaves, from their tails, in the
    order of ``options.eviction``.

    match and insert are O(pages of the key); evict is O(pages + leaves * log leaves); stats are O(1).
    A hit must be locked before the next ``evict`` or ``reset``; locking one that lost pages since raises
    AssertionError.
    """

    def __init__(self, options: RadixOptions, context: CacheContext) -> None:
        super().__init__(context)
        self._queue = EvictionQueue(RULES[options.eviction.value])
        self._now = 0  # logical time: one tick a match or insert
        self._root = Node(None, [], [], 0, 0)
        self._cached = 0
        self._locked = 0
        self._evicted = 0

    def match(self, key: CacheKey) -> Hit:
        path = self._walk(key.pages(self.context.page_size))
        for node in path:
            node.uses += 1
        return _hit(path)

    def lock(self, hit: Hit) -> None:
        for node in _ancestors(hit):
            if node.locks == 0:
                self._locked += len(node.pages)
            node.locks += 1

    def unlock(self, hit: Hit) -> None:
        for node in _ancestors(hit):
            assert node.locks > 0, "a hit was unlocked more often than it was locked"
            node.locks -= 1
            if node.locks == 0:
                self._locked -= len(node.pages)
                if node.evictable:
                    self._queue.add(node)

    def insert(self, key: CacheKey, pages: Sequence[int], info: InsertInfo) -> Hit:
        labels = key.pages(self.context.page_size)[: len(pages)]
        path = self._walk(labels)
        for node in path:
            node.priority = max(node.priority, info.priority)
        parent = path[-1] if path else self._root
        if parent.end < len(labels):
            new = list(pages[parent.end : len(labels)])
            leaf = Node(parent, labels[parent.end :], new, self._now, info.priority)
            self._cached += len(new)
            self._queue.add(leaf)
            path.append(leaf)
        return _hit(path)

    def evict(self, pages: int) -> list[int]:
        dropped = self._drop(pages)
        self._evicted += len(dropped)
        return dropped

    def reset(self) -> list[int]:
        return self._drop(self._cached - self._locked)

    def stats(self) -> CacheStats:
        return CacheStats(self._cached, self._cached - self._locked, self._evicted)

    def check_integrity(self) -> None:
        check_tree(self._root, self.context.pages, self._cached, self._locked)

    def _walk(self, labels: list[bytes]) -> list[Node]:
        """The nodes that hold the longest cached prefix of ``labels``, now the most recently used; the last
        one ends exactly with the prefix (it is split for that)."""
        path: list[Node] = []
        node = self._root
        self._now += 1
        while node.end < len(labels):
            child = node.children.get(labels[node.end])
            if child is None:
                break
            shared = child.common(labels, node.end)
            complete = shared == len(child.labels)
            node = child if complete else child.split(shared)
            node.last_use = self._now
            path.append(node)
            if not complete:
                break
        return path

    def _drop(self, count: int) -> list[int]:
        dropped: list[int] = []
        while len(dropped) < count and (node := self._queue.pop()):
            dropped += node.cut(min(count - len(dropped), len(node.pages)))
            rest = node if node.pages else node.parent
            if rest is not None and rest.evictable:
                self._queue.add(rest)
        self._cached -= len(dropped)
        return dropped


def _hit(path: list[Node]) -> Hit:
    return Hit(tuple(page for node in path for page in node.pages), path[-1] if path else None)


def _ancestors(hit: Hit) -> Iterator[Node]:
    """The nodes that hold a hit's pages, last one first."""
    node = hit.node
    if node is None:
        return
    assert isinstance(node, Node), "the hit is another policy's"
    assert node.end == len(hit.pages), "pages of the hit were evicted before it was locked"
    while node.parent is not None:
        yield node
        node = node.parent
