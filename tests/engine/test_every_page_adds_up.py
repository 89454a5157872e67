"""A state machine over scheduler, pages and each cache policy: random arrivals, aborts and tiny pools.

After every step all pages are accounted for; every request that is not aborted gets the one right answer;
none starves. The pools are small enough that preemption and eviction happen all the time.
"""

from __future__ import annotations

import importlib

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pymllm.engine.admission import check
from pymllm.engine.engine import Engine
from pymllm.errors import RequestError
from pymllm.interfaces.cache import CacheContext
from simulated import VOCAB, SimulatedRunner, answer, info, request

TOKENS = st.integers(0, VOCAB - 1)
PROMPTS = st.one_of(
    st.lists(TOKENS, min_size=1, max_size=20),
    st.integers(1, 20).map(lambda n: [1] * n),  # these share prefixes
    st.tuples(st.integers(1, 12), st.lists(TOKENS, max_size=6)).map(lambda t: [2] * t[0] + t[1]),
)


def make_policy(name: str, page_size: int, pages: int):
    kind, _, rule_name = name.partition("-")
    plugin = importlib.import_module(f"pymllm_cache_{kind}.plugin")
    spec = plugin.pymllm_cache()
    options = spec.config(page_size=page_size)
    if rule_name:
        options.eviction = plugin.Eviction(rule_name)
    return spec.load_factory()(options, CacheContext(page_size, pages))


class EngineMachine(RuleBasedStateMachine):
    policy_name = "chunk"

    @initialize(
        page_size=st.sampled_from([1, 2, 3, 4]),
        tokens=st.integers(12, 40),
        budget=st.one_of(st.just(1), st.integers(1, 16)),
        max_running=st.integers(1, 5),
        overlap=st.booleans(),
    )
    def start(self, page_size: int, tokens: int, budget: int, max_running: int, overlap: bool) -> None:
        pages = max(1, tokens // page_size)
        self.info = info(pages=pages, page_size=page_size, budget=budget, max_running=max_running)
        self.runner = SimulatedRunner(page_size, budget)
        self.engine = Engine(
            self.info, self.runner, make_policy(self.policy_name, page_size, pages), seed=0, overlap=overlap
        )
        self.open: dict[str, tuple[list[int], int, list[int]]] = {}
        self.ended: list[list[int]] = []
        self.arrivals = 0

    @rule(prompt=PROMPTS, count=st.integers(1, 12), priority=st.sampled_from([0, 0, 0, 1]))
    def arrive(self, prompt: list[int], count: int, priority: int) -> None:
        spec = request(f"r{self.arrivals}", prompt, count, priority=priority)
        self.arrivals += 1
        try:
            check(spec, self.info)
        except RequestError:
            assert len(prompt) + count > self.info.max_request_tokens, "a request that fits was refused"
            return
        self.engine.submit(spec)
        self.open[spec.id] = (prompt, count, [])

    @precondition(lambda self: self.ended)
    @rule(data=st.data(), more=st.lists(TOKENS, max_size=3), count=st.integers(1, 6))
    def follow_up(self, data, more: list[int], count: int) -> None:
        """The next turn of a conversation: an earlier prompt, its answer, and something new."""
        turn = data.draw(st.sampled_from(self.ended))
        self.arrive(turn + more, count, 0)

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def abort(self, data) -> None:
        name = data.draw(st.sampled_from(sorted(self.open)))
        self.engine.abort(name)
        self.engine.abort(name)  # twice is harmless

    @rule(steps=st.integers(1, 6))
    def step(self, steps: int) -> None:
        for _ in range(steps):
            self._take(self.engine.step())

    @rule()
    def reset_cache(self) -> None:
        self.engine.reset_cache()

    def _take(self, outputs) -> None:
        for output in outputs:
            prompt, count, tokens = self.open[output.id]
            tokens += output.token_ids
            assert tokens == answer(prompt, count)[: len(tokens)], "a wrong token"
            if output.finish_reason is not None:
                assert output.finish_reason in ("length", "abort")
                assert output.finish_reason == "abort" or len(tokens) == count
                del self.open[output.id]
                self.ended.append(prompt + tokens)
        self.engine.check_integrity()

    @invariant()
    def pages_add_up(self) -> None:
        if hasattr(self, "engine"):
            self.engine.check_integrity()

    def teardown(self) -> None:
        """Nothing starves: with no new arrivals all requests end, in a bounded number of steps."""
        if not hasattr(self, "engine"):
            return
        bound = 50 + 20 * sum(len(prompt) + count for prompt, count, _ in self.open.values())
        for _ in range(bound):
            if not self.engine.has_work:
                break
            self._take(self.engine.step())
        assert not self.open, f"{len(self.open)} requests were not served in {bound} steps"
        stats = self.engine.stats()
        assert (stats.running, stats.waiting, stats.pages_used) == (0, 0, 0)


@pytest.mark.parametrize("policy", ["chunk", "radix-lru", "radix-lfu", "radix-fifo", "radix-priority", "lfu"])
def test_random_traffic(policy: str) -> None:
    machine = type("Machine", (EngineMachine,), {"policy_name": policy})
    machine.TestCase.settings = settings(
        max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
    )
    machine.TestCase("runTest").runTest()
