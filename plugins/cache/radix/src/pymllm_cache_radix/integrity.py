"""What is always true of the tree, checked node by node."""

from __future__ import annotations

from pymllm_cache_radix.node import Node


def check_tree(root: Node, pages: int, cached: int, locked: int) -> None:
    """Raise AssertionError with a sentence unless the tree is sound and holds ``cached`` pages out of
    1..``pages``, of which ``locked`` are locked. O(pages)."""
    seen: list[int] = []
    locked_seen = 0
    todo = list(root.children.items())
    while todo:
        label, node = todo.pop()
        _check_node(label, node)
        seen += node.pages
        locked_seen += len(node.pages) if node.locks else 0
        todo += node.children.items()
    assert len(set(seen)) == len(seen), "one page is in the tree twice"
    assert all(1 <= page <= pages for page in seen), f"a page is not one of 1..{pages}"
    assert len(seen) == cached, f"the tree holds {len(seen)} pages, but {cached} are counted"
    assert locked_seen == locked, f"{locked_seen} pages are locked, but {locked} are counted"


def _check_node(label: bytes, node: Node) -> None:
    parent = node.parent
    where = f"the node that ends at page {node.end}"
    assert parent is not None, f"{where} has no parent"
    assert parent.children.get(label) is node, f"{where} is not its parent's child"
    assert node.pages, f"{where} holds no page"
    assert len(node.pages) == len(node.labels), f"{where} has {len(node.labels)} labels for {len(node.pages)} pages"
    assert node.labels[0] == label, f"{where} is filed under another label than its first"
    assert node.end == parent.end + len(node.pages), f"{where} does not start where its parent ends"
    below = sum(child.locks for child in node.children.values())
    assert node.locks >= below, f"{where} has {node.locks} locks, fewer than its children's {below}"
    assert node.queued or not node.evictable, f"{where} is evictable but not in the eviction queue"
    if parent.parent is not None:
        for name in ("last_use", "uses", "priority"):
            assert getattr(parent, name) >= getattr(node, name), f"{where} has a higher {name} than its parent"
        assert parent.inserted <= node.inserted, f"{where} was inserted before its parent"
