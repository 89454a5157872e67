"""Gives requests their KV pages: from the prefix cache, from the free list, and back."""

from __future__ import annotations

from pymllm.engine.request import Request
from pymllm.interfaces.cache import CachePolicy, Hit, InsertInfo
from pymllm.memory.pages import PagePool


class KVManager:
    """Moves pages between the free list, the requests and the cache policy.

    Every page is with exactly one of them: free + owned by the policy + owned by requests = total.
    """

    def __init__(self, pool: PagePool, policy: CachePolicy, page_size: int) -> None:
        self._pool = pool
        self._policy = policy
        self.page_size = page_size

    @property
    def available(self) -> int:
        """Pages that could be had now: free ones and those the policy could drop."""
        return self._pool.free_count + self._policy.stats().evictable_pages

    def pages_for(self, tokens: int) -> int:
        """Pages that hold this many tokens."""
        return -(-tokens // self.page_size)

    def begin(self, request: Request) -> None:
        """Take the cached prefix of a request that holds nothing. At least one token is left to compute,
        since its logits are needed."""
        assert not request.pages, "a request that begins holds no pages"
        if self._policy.reuses and not request.wants_prompt_logprobs:
            hit = self._policy.match(request.key(request.length - 1))
            if hit.pages:
                self._policy.lock(hit)
                request.hit = hit
                request.pages = list(hit.pages)
        request.computed = request.settled = len(request.pages) * self.page_size
        request.synced_pages = 0

    def extend(self, request: Request, length: int) -> bool:
        """Make the request's pages cover ``length`` tokens, evicting cached pages if need be. Returns False
        and changes nothing of the request when there are too few."""
        wanted = self.pages_for(length) - len(request.pages)
        if wanted <= 0:
            return True
        lacking = wanted - self._pool.free_count
        if lacking > 0:
            self._pool.free(self._policy.evict(lacking))
        pages = self._pool.allocate(wanted)
        if pages is None:
            return False
        request.pages += pages
        return True

    def publish(self, request: Request) -> None:
        """Hand the whole pages among the settled tokens to the policy. Pages whose content the policy
        already has are swapped for its own and freed."""
        whole = request.settled // self.page_size
        if not self._policy.reuses or whole <= len(request.hit.pages):
            return
        key = request.key(whole * self.page_size)
        hit = self._policy.insert(key, request.pages[:whole], InsertInfo(priority=request.spec.priority))
        if not hit.pages:
            return
        self._policy.lock(hit)
        swapped = [i for i, (own, kept) in enumerate(zip(request.pages, hit.pages)) if own != kept]
        duplicates = [request.pages[i] for i in swapped]
        request.pages[: len(hit.pages)] = hit.pages
        request.synced_pages = min([request.synced_pages, *swapped])
        self._unlock(request)
        request.hit = hit
        self._pool.free(duplicates)

    def release(self, request: Request, *, keep: bool) -> None:
        """Take everything from a request. keep: its KV is sound and stays with the policy for others."""
        if keep:
            self.publish(request)
        self._pool.free(request.pages[len(request.hit.pages) :])
        self._unlock(request)
        request.pages = []
        request.computed = request.settled = 0

    def reset(self) -> int:
        """Drop every cached page that no request uses. Returns how many."""
        dropped = self._policy.reset()
        self._pool.free(dropped)
        return len(dropped)

    def _unlock(self, request: Request) -> None:
        if request.hit.pages:
            self._policy.unlock(request.hit)
        request.hit = Hit()

    def check_integrity(self, requests: list[Request]) -> None:
        """Raise AssertionError unless all pages are accounted for, given every request that holds some."""
        self._policy.check_integrity()
        owned = [page for request in requests for page in request.pages[len(request.hit.pages) :]]
        cached = self._policy.stats().cached_pages
        assert len(owned) == len(set(owned)), "two requests own one page"
        total = self._pool.free_count + len(owned) + cached
        assert total == self._pool.size, (
            f"pages do not add up: {self._pool.free_count} free + {len(owned)} in use + {cached} cached "
            f"= {total}, not {self._pool.size}"
        )
