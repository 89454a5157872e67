"""Random requests against a cache policy, checked after every step against a naive model.

The model is a dict from page to content, where content is spelled out token by token; it shares no code
with :meth:`CacheKey.pages` or with any policy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pymllm.interfaces import CacheKey, CachePolicy, Hit, InsertInfo, MediaSpan

MakePolicy = Callable[[int, int], CachePolicy]
Content = tuple[object, ...]

IMAGES = {b"\1" * 32: 2, b"\2" * 32: 5}
"""Digests and the tokens that each image takes (the digest covers all that decides their number)."""


@dataclass
class Running:
    """A request: the pages of its whole key (its own ones or the policy's), and the hit it has locked."""

    key: CacheKey
    content: list[Content]
    pages: list[int]
    hit: Hit
    locks: int = 1


def content(key: CacheKey, page_size: int) -> list[Content]:
    """For each whole page, everything its KV depends on: namespace, tokens and media up to its end."""
    tokens: list[object] = list(key.tokens)
    for span in key.media:
        for i in range(span.start, min(span.start + span.length, len(tokens))):
            tokens[i] = (tokens[i], span.digest, i - span.start)
    return [(key.namespace, *tokens[: end * page_size]) for end in range(1, len(tokens) // page_size + 1)]


@st.composite
def keys(draw: st.DrawFn) -> CacheKey:
    """Short keys that mostly begin alike; some with an image (its end may be cut off), some in a namespace."""
    size: int = draw(st.integers(0, 12))
    tokens = [0] * size
    if size and draw(st.booleans()):
        tokens[draw(st.integers(0, size - 1))] = 1
    media: tuple[MediaSpan, ...] = ()
    if size and draw(st.integers(0, 3)) == 3:
        digest = draw(st.sampled_from(sorted(IMAGES)))
        media = (MediaSpan(draw(st.integers(0, size - 1)), IMAGES[digest], digest),)
    return CacheKey(tuple(tokens), media, draw(st.sampled_from(["", "", "", "tenant"])))


class CacheMachine(RuleBasedStateMachine):
    """Requests that come, match, insert (also while running), lock again and leave, in a tiny pool."""

    make_policy: MakePolicy

    @initialize(page_size=st.integers(1, 3), pages=st.integers(2, 24))
    def start(self, page_size: int, pages: int) -> None:
        self.page_size, self.pages = page_size, pages
        self.policy = self.make_policy(page_size, pages)
        self.free = set(range(1, pages + 1))
        self.cached: dict[int, Content] = {}
        self.running: list[Running] = []
        self.evicted = 0

    @rule(key=keys(), count=st.integers(1, 2))
    def arrive(self, key: CacheKey, count: int) -> None:
        for _ in range(count):
            self._admit(key)

    def _admit(self, key: CacheKey) -> None:
        wanted = content(key, self.page_size)
        hit = self._match(key, wanted)
        self.policy.lock(hit)
        missing = len(wanted) - len(hit.pages)
        request = Running(key, wanted, list(hit.pages), hit)
        self.running.append(request)
        if missing > len(self.free):
            self._evict(missing - len(self.free))
        if missing > len(self.free):
            self._leave(request)
            return
        request.pages += [self.free.pop() for _ in range(missing)]

    @rule(key=keys())
    def look(self, key: CacheKey) -> None:
        self._match(key, content(key, self.page_size))

    @precondition(lambda self: self.running)
    @rule(data=st.data(), priority=st.integers(-1, 2))
    def insert_some(self, data: st.DataObject, priority: int) -> None:
        request = data.draw(st.sampled_from(self.running))
        self._insert(request, data.draw(st.integers(len(request.hit.pages), len(request.pages))), priority)

    @precondition(lambda self: self.running)
    @rule(priority=st.integers(-1, 2))
    def insert_all(self, priority: int) -> None:
        for request in self.running:
            self._insert(request, len(request.pages), priority)

    def _insert(self, request: Running, count: int, priority: int) -> None:
        offered = request.pages[:count]
        hit = self.policy.insert(request.key, offered, InsertInfo(priority))
        assert len(request.hit.pages) <= len(hit.pages) <= count, "insert gave back a hit of impossible length"
        for i, page in enumerate(hit.pages):
            if page == offered[i]:
                assert self.cached.setdefault(page, request.content[i]) == request.content[i], "a page changed content"
            else:
                assert self.cached.get(page) == request.content[i], "a canonical page does not hold the key's content"
                self.free.add(offered[i])
                request.pages[i] = page
        self._check_hit(self.policy.match(request.key), request.content)
        for _ in range(request.locks):
            self.policy.lock(hit)
            self.policy.unlock(request.hit)
        request.hit = hit

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def lock_again(self, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from(self.running))
        self.policy.lock(request.hit)
        request.locks += 1

    @precondition(lambda self: any(request.locks > 1 for request in self.running))
    @rule(data=st.data())
    def unlock_once(self, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from([request for request in self.running if request.locks > 1]))
        self.policy.unlock(request.hit)
        request.locks -= 1

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        self._leave(data.draw(st.sampled_from(self.running)))

    @precondition(lambda self: self.cached)
    @rule(count=st.integers(0, 6))
    def evict(self, count: int) -> None:
        self._evict(count)

    @precondition(lambda self: len(self.cached) > 3)
    @rule()
    def reset(self) -> None:
        droppable = self.cached.keys() - self._locked()
        dropped = self.policy.reset()
        assert sorted(dropped) == sorted(droppable), f"reset dropped {dropped} instead of {sorted(droppable)}"
        self._take_back(dropped)

    @invariant()
    def the_books_agree(self) -> None:
        if not hasattr(self, "policy"):
            return
        self.policy.check_integrity()
        own = [page for request in self.running for page in request.pages[len(request.hit.pages) :]]
        everything = sorted([*self.free, *self.cached, *own])
        assert everything == list(range(1, self.pages + 1)), f"free + cached + in use is {everything}"
        stats, locked = self.policy.stats(), self._locked()
        assert stats.cached_pages == len(self.cached), f"{stats} but {len(self.cached)} pages were taken"
        assert stats.evictable_pages == len(self.cached) - len(locked), f"{stats} but {len(locked)} pages are locked"
        assert stats.evicted_pages == self.evicted, f"{stats} but {self.evicted} pages were evicted"

    def _locked(self) -> set[int]:
        return {page for request in self.running for page in request.hit.pages}

    def _match(self, key: CacheKey, wanted: list[Content]) -> Hit:
        hit = self.policy.match(key)
        self._check_hit(hit, wanted)
        return hit

    def _check_hit(self, hit: Hit, wanted: list[Content]) -> None:
        known, longest = set(self.cached.values()), 0
        while longest < len(wanted) and wanted[longest] in known:
            longest += 1
        assert len(hit.pages) == longest, f"matched {len(hit.pages)} pages, but {longest} are cached"
        for page, content_ in zip(hit.pages, wanted):
            assert self.cached.get(page) == content_, f"page {page} does not hold the key's content"

    def _leave(self, request: Running) -> None:
        for _ in range(request.locks):
            self.policy.unlock(request.hit)
        self.free.update(request.pages[len(request.hit.pages) :])
        self.running.remove(request)

    def _evict(self, count: int) -> None:
        droppable = self.cached.keys() - self._locked()
        dropped = self.policy.evict(count)
        assert droppable.issuperset(dropped), f"evicted {dropped}, but only {sorted(droppable)} were unlocked"
        assert len(dropped) >= min(count, len(droppable)), f"evicted {len(dropped)} pages of {count} asked"
        self.evicted += len(dropped)
        self._take_back(dropped)

    def _take_back(self, dropped: list[int]) -> None:
        assert len(set(dropped)) == len(dropped), "a page was dropped twice"
        for page in dropped:
            del self.cached[page]
        self.free.update(dropped)


def cache_machine(build: MakePolicy) -> type[CacheMachine]:
    """The state machine for the policy that ``build(page_size, pages)`` makes."""

    class Machine(CacheMachine):
        make_policy = staticmethod(build)

    return Machine
