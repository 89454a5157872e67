"""Decides what each step computes.

Every step is one flat batch under a token budget. Decodes (requests with one token to compute) ride
along with prefill chunks (Sarathi-Serve, Agrawal et al. 2024), and neither starves the other:

- while prefills wait, a quarter of the budget (at least one token) is theirs, and they are served in order
  of arrival, so the first of them advances every step;
- decodes have the rest and take turns when they do not all fit, so each is served at least once in
  ``ceil(decodes / (budget - quarter))`` steps;
- a budget of one token alternates between the two.

Encoding an image or video costs as many tokens of the budget as it has feature rows, in the step that needs the first
of them.

When pages run out, the request that came last gives up its pages and is computed again later. The first
can thus always have the whole pool, and since no request is admitted that would not fit alone, all end.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable

from pymllm.engine.kv import KVManager
from pymllm.engine.plan import StepItem, StepPlan
from pymllm.engine.prefixes import InFlightPrefixes
from pymllm.engine.request import Phase, Request
from pymllm.memory.slots import SlotPool


class Scheduler:
    """Requests in, step plans out. Needs no model and no tensor.

    max_batch_tokens: budget of a step, >= 1. max_running: requests that hold pages at a time, >= 1.
    share_in_flight: let a request wait for a prefix that another one is just computing.
    knows_media: whether the features of an image or video are there, by digest.
    """

    def __init__(
        self,
        kv: KVManager,
        *,
        max_batch_tokens: int,
        max_running: int,
        share_in_flight: bool,
        knows_media: Callable[[bytes], bool] = lambda digest: False,
    ) -> None:
        self._kv = kv
        self._knows_media = knows_media
        self._budget = max_batch_tokens
        self._slots = SlotPool(max_running)
        self._prefixes = InFlightPrefixes(kv.page_size) if share_in_flight else None
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self.preemptions = 0
        self._step = 0
        self._decodes_turn = True

    @property
    def has_work(self) -> bool:
        """Whether any request is open."""
        return bool(self.waiting or self.running)

    def add(self, request: Request) -> None:
        """Queue a request (that fits into the pool when it is alone)."""
        insort(self.waiting, request, key=lambda r: r.rank)

    def schedule(self) -> StepPlan:
        """Plan the next step; its requests' ``computed`` and ``pending`` already count it. It may be scheduled
        before the results of the last one are known. Empty when nothing can be computed now."""
        self._step += 1
        self._admit()
        items: list[StepItem] = []
        for request, count in self._choose():
            if request.phase is not Phase.running or not self._make_room(request, request.computed + count):
                continue
            samples = request.computed + count == request.length
            items.append(StepItem(request, request.computed, count, samples, request.epoch))
            request.computed += count
            request.pending += samples
            request.last_step = self._step
        items.sort(key=lambda item: item.count > 1)  # decodes first: backends serve them with another kernel
        return StepPlan(items)

    def commit(self, item: StepItem, token: int | None) -> None:
        """A step has ended: its KV is there, and with it the sampled token, if the item samples."""
        request = item.request
        assert item.current, "results of a request that left are void"
        request.settled = item.start + item.count
        if token is not None:
            request.pending -= 1
            request.tokens.append(token)
        if request.chain is not None:
            self._kv.publish(request)
            if item.samples:
                self._prefill_over(request)

    def finish(self, request: Request, *, keep: bool = True) -> None:
        """End a request in any phase and free what it holds. keep: its KV is sound and may serve others."""
        if request.phase is Phase.waiting:
            self.waiting.remove(request)
        elif request.phase is Phase.running:
            self._leave(request, keep=keep)
        request.phase = Phase.finished

    def _admit(self) -> None:
        """Move waiting requests to running while slots and pages last, in order; one that waits for a
        prefix in flight lets others pass."""
        promised = sum(self._lacking(request) for request in self.running)
        index = 0
        while index < len(self.waiting) and self._slots.free_count:
            request = self.waiting[index]
            if self._prefixes is not None and self._prefixes.still_waits(request):
                index += 1
                continue
            if self.running and request.lacked_pages > self._kv.available - promised:
                return
            self._kv.begin(request)
            if self._prefix_in_flight(request):
                self._kv.release(request, keep=False)
                index += 1
                continue
            request.lacked_pages = self._lacking(request)
            if self.running and request.lacked_pages > self._kv.available - promised:
                self._kv.release(request, keep=False)
                return
            promised += request.lacked_pages
            del self.waiting[index]
            self._enter(request)

    def _lacking(self, request: Request) -> int:
        """Pages that the tokens known so far still need, and the next one."""
        return self._kv.pages_for(request.length + 1) - len(request.pages)

    def _prefix_in_flight(self, request: Request) -> bool:
        if self._prefixes is None or request.wants_prompt_logprobs:
            return False
        return self._prefixes.must_wait(request, len(request.pages))

    def _prefill_over(self, request: Request) -> None:
        if self._prefixes is not None:
            self._prefixes.remove(request)

    def _enter(self, request: Request) -> None:
        slot = self._slots.allocate()
        assert slot is not None, "a free slot was counted"
        request.slot = slot
        request.phase = Phase.running
        request.last_step = self._step
        if request.cached_tokens is None:
            request.cached_tokens = request.computed
        if self._prefixes is not None:
            self._prefixes.add(request)
        insort(self.running, request, key=lambda r: r.rank)

    def _choose(self) -> list[tuple[Request, int]]:
        """Divide the budget: (request, tokens), in order of service."""
        decodes = [r for r in self.running if r.remaining == 1 and not r.complete]
        prefills = [r for r in self.running if r.remaining > 1]
        budget = self._budget
        reserve = 0
        if decodes and prefills:
            reserve = max(1, budget // 4)
            reserve = min(reserve, sum(r.remaining for r in prefills))
            if budget == 1:
                self._decodes_turn = not self._decodes_turn
                reserve = 0 if self._decodes_turn else 1
        quota = min(len(decodes), budget - reserve)
        if quota < len(decodes):
            decodes = sorted(decodes, key=lambda r: r.last_step)[:quota]
        chosen = [(request, 1) for request in decodes]
        left = budget - len(chosen)
        encoded: set[bytes] = set()
        for place, request in enumerate(prefills):
            if left <= 0:
                break
            count, cost = self._afford(request, left, encoded, must=place == 0)
            if count:
                chosen.append((request, count))
            left -= count + cost
        return sorted(chosen, key=lambda choice: choice[0].rank)

    def _afford(self, request: Request, left: int, encoded: set[bytes], *, must: bool) -> tuple[int, int]:
        """How many tokens of a prefill the rest of the budget pays for, and what encoding their media costs: a token
        for each feature row. encoded: digests that the step encodes already, added to. must: one medium is encoded
        even if it alone is more than what is left, or it would wait for ever.
        """
        start, cost = request.computed, 0
        count = min(left, request.remaining)
        for run in request.spec.media:
            if run.start + run.length <= start:
                continue
            if run.start >= start + count:
                break
            medium = request.spec.inputs[run.item]
            if medium.digest in encoded or self._knows_media(medium.digest):
                continue
            before = max(0, run.start - start)
            if before + cost + medium.tokens >= left and not (must and before == cost == 0):
                return before, cost
            encoded.add(medium.digest)
            cost += medium.tokens
            count = max(1, min(count, left - cost))
        return count, cost

    def _make_room(self, request: Request, length: int) -> bool:
        """Pages for the request, if need be from younger ones. False if it had to give up its own."""
        while not self._kv.extend(request, length):
            victim = self.running[-1]
            self._leave(victim, keep=True)
            victim.phase = Phase.waiting
            self.preemptions += 1
            insort(self.waiting, victim, key=lambda r: r.rank)
            if victim is request:
                return False
        return True

    def _leave(self, request: Request, *, keep: bool) -> None:
        """Take slot and pages from a running request."""
        self._prefill_over(request)
        self._kv.release(request, keep=keep)
        self._slots.free(request.slot)
        request.slot = -1
        request.pending = 0
        request.epoch += 1
        self.running.remove(request)
