"""Which leaf is dropped first: the eviction rules, and the queue that applies one."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush

from pymllm_cache_radix.node import Node

Rule = Callable[[Node], tuple[int, ...]]

RULES: dict[str, Rule] = {
    "lru": lambda node: (node.last_use,),
    "lfu": lambda node: (node.uses, node.last_use),
    "fifo": lambda node: (node.inserted,),
    "priority": lambda node: (node.priority, node.last_use),
}
"""The leaf with the least key goes first. To add a rule, add an entry here and a name to ``Eviction``;
a node's key may never decrease while the node lives (see :class:`EvictionQueue`)."""


class EvictionQueue:
    """A heap of the evictable leaves.

    Entries are corrected when they surface rather than when a node changes, so a match costs nothing
    here: a node has at most one entry, whose key is not above the node's own (keys never decrease), so
    an up-to-date entry at the top is the least of all. Entries of nodes that were locked or grew
    children meanwhile are dropped; the policy adds those nodes again once they are evictable.
    """

    def __init__(self, rule: Rule) -> None:
        self._rule = rule
        self._heap: list[tuple[tuple[int, ...], int, Node]] = []
        self._entries = 0

    def add(self, node: Node) -> None:
        """Note that a node is evictable (no effect when it has an entry already). O(log n)."""
        if not node.queued:
            node.queued = True
            self._entries += 1  # unique, so that nodes themselves are never compared
            heappush(self._heap, (self._rule(node), self._entries, node))

    def pop(self) -> Node | None:
        """Take the leaf to drop next out of the queue; None when no leaf is evictable. O(log n) amortized."""
        while self._heap:
            key, _, node = heappop(self._heap)
            node.queued = False
            if not node.evictable:
                continue
            if key == self._rule(node):
                return node
            self.add(node)
        return None
