"""Stop strings over a stream of text: where the answer ends, and what must be held back meanwhile."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from pymllm.errors import RequestError

MAX_STOP_STRINGS = 64
MAX_STOP_LENGTH = 1024
"""Characters of one stop string: more is refused, since every open answer would hold them all."""


@dataclass
class _Node:
    """A prefix of some stop string, ``depth`` characters long. fail: the node of its longest proper suffix.
    found: the longest stop string that ends here, or None."""

    depth: int
    next: dict[str, _Node] = field(default_factory=dict)
    fail: _Node | None = None
    found: str | None = None


class StopStrings:
    """The automaton of Aho and Corasick (1975) over a request's stop strings; shared by its answers."""

    def __init__(self, strings: list[str]) -> None:
        """Raises RequestError for too many or too long strings."""
        if len(strings) > MAX_STOP_STRINGS:
            raise RequestError(f"stop may hold at most {MAX_STOP_STRINGS} strings, not {len(strings)}", "stop")
        longest = max(map(len, strings), default=0)
        if longest > MAX_STOP_LENGTH:
            raise RequestError(f"a stop string may have at most {MAX_STOP_LENGTH} characters, not {longest}", "stop")
        self.root = _Node(0)
        for string in strings:
            self._add(string)
        self._link()

    def _add(self, string: str) -> None:
        node = self.root
        for character in string:
            node = node.next.setdefault(character, _Node(node.depth + 1))
        node.found = string

    def _link(self) -> None:
        """Set ``fail`` and inherit ``found``, breadth first, so that shorter prefixes are ready."""
        queue = deque([self.root])
        while queue:
            node = queue.popleft()
            for character, child in node.next.items():
                child.fail = self.root if node is self.root else self.step(node.fail or self.root, character)
                child.found = child.found or child.fail.found
                queue.append(child)

    def step(self, node: _Node, character: str) -> _Node:
        """The node of the longest suffix of (node's text + character) that begins a stop string."""
        while True:
            following = node.next.get(character)
            if following is not None:
                return following
            if node.fail is None:
                return node
            node = node.fail


class StopMatcher:
    """One answer's stream of text.

    The stop string that is complete first ends the answer (of two that end together, the longer one), so
    the result does not depend on where the text was cut into pieces.
    """

    def __init__(self, stops: StopStrings, *, include: bool = False) -> None:
        """include: the stop string stays in the text."""
        self._stops = stops
        self._include = include
        self._node = stops.root
        self._held = ""
        self.matched: str | None = None

    def feed(self, text: str, *, armed: bool = True) -> str:
        """Add text; returns what is certain to belong to the answer.

        armed: False lets a stop string that is complete within ``text`` pass as ordinary text.
        After a match (``matched`` is the stop string) every later text is dropped.
        """
        if self.matched is not None:
            return ""
        seen = self._held + text
        for position, character in enumerate(text, len(self._held) + 1):
            self._node = self._stops.step(self._node, character)
            if armed and self._node.found is not None:
                self.matched = self._node.found
                self._held = ""
                return seen[: position if self._include else position - len(self.matched)]
        while not self._node.next and self._node.fail is not None:
            self._node = self._node.fail  # a whole stop string that passed unarmed
        keep = self._node.depth
        self._held = seen[len(seen) - keep :]
        return seen[: len(seen) - keep]

    def finish(self) -> str:
        """The text held back, which no stop string can claim any more."""
        text, self._held = self._held, ""
        return text
