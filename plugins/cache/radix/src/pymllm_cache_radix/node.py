"""A node of the radix tree: a run of pages that nothing branches off from."""

from __future__ import annotations


class Node:
    """Pages [start, end) of every key that leads here.

    A node is also the handle of a hit that ends with its last page. So its ``end`` may only shrink (its
    tail was evicted, and with it the hit), never grow or move: :meth:`split` puts the new node above.

    labels, pages: identity and number of each page. children: by the first label of each.
    locks: hits locked here or below. last_use, inserted: logical times. uses: times matched, plus one.
    priority: the highest of those who inserted it. queued: it has an entry in the eviction queue.
    """

    __slots__ = (
        "children",
        "end",
        "inserted",
        "labels",
        "last_use",
        "locks",
        "pages",
        "parent",
        "priority",
        "queued",
        "uses",
    )

    def __init__(self, parent: Node | None, labels: list[bytes], pages: list[int], now: int, priority: int) -> None:
        self.parent = parent
        self.labels = labels
        self.pages = pages
        self.children: dict[bytes, Node] = {}
        self.end: int = (parent.end if parent else 0) + len(pages)
        self.locks = 0
        self.uses = 1
        self.last_use = self.inserted = now
        self.priority = priority
        self.queued = False
        if parent:
            parent.children[labels[0]] = self

    @property
    def evictable(self) -> bool:
        """Its tail can be dropped now: an unlocked leaf (the root is not part of the cache)."""
        return not self.children and self.locks == 0 and self.parent is not None

    def common(self, labels: list[bytes], start: int) -> int:
        """How many of the node's labels equal those of ``labels`` from index ``start`` on."""
        size = len(self.labels)
        if self.labels == labels[start : start + size]:
            return size
        for i, (mine, other) in enumerate(zip(self.labels, labels[start : start + size])):
            if mine != other:
                return i
        return min(size, len(labels) - start)

    def split(self, at: int) -> Node:
        """Move the first ``at`` pages (0 < at < len(pages)) into a new node above this one; return that.

        Every lock on this node goes through the new one too, and is undone through it: unlocking walks
        up the parents.
        """
        assert self.parent is not None, "the root holds no pages to split"
        assert 0 < at < len(self.pages), "a split needs a page on either side"
        upper = Node(self.parent, self.labels[:at], self.pages[:at], self.inserted, self.priority)
        upper.locks, upper.uses, upper.last_use = self.locks, self.uses, self.last_use
        del self.labels[:at], self.pages[:at]
        self.parent = upper
        upper.children[self.labels[0]] = self
        return upper

    def cut(self, count: int) -> list[int]:
        """Drop the last ``count`` pages and return them; a node left empty leaves the tree."""
        assert self.evictable, "only pages of an unlocked leaf can be dropped"
        assert 0 < count <= len(self.pages), f"cannot drop {count} of {len(self.pages)} pages"
        if self.parent is not None and count == len(self.pages):
            del self.parent.children[self.labels[0]]
        dropped = self.pages[-count:]
        del self.labels[-count:], self.pages[-count:]
        self.end -= count
        return dropped
