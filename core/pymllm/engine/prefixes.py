"""Which prefixes are being computed right now, so that a request with the same one can wait and share it.

Pages are compared by chained hashes of their identities. A collision of two 64-bit hashes makes a request
wait a little for nothing; it cannot make it share a page, which only the cache policy decides.
"""

from __future__ import annotations

from pymllm.engine.request import Request


class InFlightPrefixes:
    """The pages that running prefills are still to compute."""

    def __init__(self, page_size: int) -> None:
        self._page_size = page_size
        self._owners: dict[int, Request] = {}

    def chain(self, request: Request) -> list[int]:
        """One hash per whole page of the request, each covering everything up to the page's end."""
        if request.chain is None:
            chain, value = [], 0
            for label in request.key(request.length).pages(self._page_size):
                value = hash((value, label))
                chain.append(value)
            request.chain = chain
        return request.chain

    def add(self, request: Request) -> None:
        """A request starts to compute its tokens from ``computed`` on."""
        for value in self.chain(request)[request.computed // self._page_size :]:
            self._owners.setdefault(value, request)

    def remove(self, request: Request) -> None:
        """A request's prefill is over (or was given up)."""
        for value in request.chain or ():
            if self._owners.get(value) is request:
                del self._owners[value]
        request.chain = None

    def still_waits(self, request: Request) -> bool:
        """Whether the prefix that a request was found to wait for is still being computed. O(1)."""
        if request.waits_for is None:
            return False
        owner, until = request.waits_for
        if owner.chain is not None and owner.settled < until:
            return True
        request.waits_for = None
        return False

    def must_wait(self, request: Request, cached_pages: int) -> bool:
        """Whether another request is computing the page that this one would compute first; it then waits
        for all the pages that the two share."""
        usable = (request.length - 1) // self._page_size
        chain = self.chain(request)
        owner = self._owners.get(chain[cached_pages]) if cached_pages < usable else None
        if owner is None or owner is request:
            return False
        shared = cached_pages
        while shared < usable and self._owners.get(chain[shared]) is owner:
            shared += 1
        request.waits_for = (owner, shared * self._page_size)
        return True
