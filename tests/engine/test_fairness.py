"""Neither prefills nor decodes starve, and equal prefixes are computed once: hand-worked schedules."""

from __future__ import annotations

from itertools import pairwise

import pytest

from pymllm.engine.engine import Engine
from pymllm.interfaces.cache import CacheContext
from pymllm_cache_chunk.plugin import pymllm_cache as chunk
from pymllm_cache_radix.plugin import pymllm_cache as radix
from simulated import SimulatedRunner, answer, info, request


def make_engine(budget: int, *, pages: int = 1000, page_size: int = 4, max_running: int = 64, policy=radix):
    spec = policy()
    cache = spec.load_factory()(spec.config(page_size=page_size), CacheContext(page_size, pages))
    runner = SimulatedRunner(page_size, budget)
    facts = info(pages=pages, page_size=page_size, budget=budget, max_running=max_running)
    return Engine(facts, runner, cache, seed=0), runner


def drain(engine: Engine) -> dict[str, list[int]]:
    tokens: dict[str, list[int]] = {}
    while engine.has_work:
        for output in engine.step():
            tokens.setdefault(output.id, []).extend(output.token_ids)
        engine.check_integrity()
    return tokens


@pytest.mark.parametrize("budget", [1, 2, 3, 8, 16])
def test_decodes_do_not_starve_a_prefill(budget: int) -> None:
    engine, runner = make_engine(budget)
    for i in range(20):
        engine.submit(request(f"decode-{i}", [i % 5], 200))
    for _ in range(60):
        engine.step()
    before = len(runner.steps)
    engine.submit(request("long", [3] * 80, 1))
    outputs = []
    while not any(output.id == "long" for output in outputs):
        outputs = engine.step()
    # a quarter of the budget, at least a token, is the prefill's; half the steps if the budget is one token
    share = max(1, budget // 4) if budget > 1 else 0.5
    # its last token is one to compute, like a decode, and takes its turn among the twenty others
    assert (
        len(runner.steps) - before <= 80 / share + 21 / min(21, max(1, budget - share)) * (2 if budget == 1 else 1) + 3
    )


@pytest.mark.parametrize("budget", [1, 2, 3, 8, 16])
def test_prefills_do_not_starve_decodes(budget: int) -> None:
    engine, runner = make_engine(budget, policy=chunk)
    for i in range(10):
        engine.submit(request(f"decode-{i}", [i % 5], 100))
    for _ in range(40):
        engine.step()
    for i in range(30):
        engine.submit(request(f"prefill-{i}", [i % 5, 4, 3] * 40, 1))
    first = len(runner.steps)
    for _ in range(200):
        engine.step()
    served: dict[str, list[int]] = {}
    for number, plan in enumerate(runner.steps[first:]):
        for item in plan.items:
            served.setdefault(item.request.spec.id, []).append(number)
    rest = budget - max(1, budget // 4) if budget > 1 else 0.5
    bound = 10 / min(10, rest) + 2
    for i in range(10):
        turns = served[f"decode-{i}"]
        gaps = [b - a for a, b in pairwise(turns)]
        assert max(gaps) <= bound, f"decode-{i} waited {max(gaps)} steps"


def test_a_prefix_in_flight_is_computed_once() -> None:
    engine, runner = make_engine(16)
    shared = [1, 2, 3, 4] * 25  # 100 tokens, 25 pages
    for i in range(8):
        engine.submit(request(f"r{i}", [*shared, i % 5, 2], 3))
    tokens = drain(engine)
    assert tokens == {f"r{i}": answer([*shared, i % 5, 2], 3) for i in range(8)}
    computed = sum(plan.tokens for plan in runner.steps)
    # the first computes 102 tokens, every other its last 2; then two decodes each
    assert computed == 102 + 7 * 2 + 8 * 2
    assert engine.stats().total_cached_tokens == 7 * 100


def test_the_same_without_reuse_computes_everything() -> None:
    engine, runner = make_engine(16, policy=chunk)
    for i in range(8):
        engine.submit(request(f"r{i}", [1, 2, 3, 4] * 25, 1))
    drain(engine)
    assert sum(plan.tokens for plan in runner.steps) == 8 * 100


def test_waiting_for_a_prefix_lets_others_pass() -> None:
    engine, runner = make_engine(4)
    engine.submit(request("first", [1] * 40, 1))
    engine.submit(request("same", [1] * 40, 1))
    engine.submit(request("other", [2], 1))  # one token to compute: rides along
    engine.step()
    engine.step()
    served = {item.request.spec.id for plan in runner.steps for item in plan.items}
    assert served == {"first", "other"}
    assert drain(engine)["same"] == answer([1] * 40, 1)


def test_an_aborted_owner_frees_those_who_wait() -> None:
    engine, _ = make_engine(4)
    engine.submit(request("owner", [1] * 40, 1))
    engine.submit(request("heir", [1] * 40, 2))
    engine.step()
    engine.abort("owner")
    assert drain(engine)["heir"] == answer([1] * 40, 2)


def test_the_youngest_is_preempted_and_computed_again() -> None:
    # ten pages of one token: two requests that need six and seven do not fit together
    engine, _ = make_engine(8, pages=10, page_size=1, policy=chunk)
    engine.submit(request("old", [1, 2], 5))
    engine.submit(request("young", [3, 4], 6))
    tokens = drain(engine)
    assert tokens == {"old": answer([1, 2], 5), "young": answer([3, 4], 6)}
    assert engine.stats().total_preemptions >= 1


def test_priority_goes_first() -> None:
    engine, _ = make_engine(4, max_running=1)
    engine.submit(request("a", [1, 1], 2))
    engine.step()
    engine.submit(request("low", [2, 2], 2))
    engine.submit(request("high", [3, 3], 2, priority=5))
    order = list(drain(engine))
    assert order.index("high") < order.index("low")
