"""An abort ends a request once, in whatever phase it is, frees what it held, and touches no other."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable

import pytest

from engines import greedy, reference_answers, start
from inbox import Inbox
from pymllm.engine.engine import Engine
from pymllm.engine.messages import EngineRequest, TokenOutput
from pymllm.engine.request import Phase
from pymllm.interfaces.cache import CacheContext
from pymllm_cache_chunk.plugin import pymllm_cache as chunk
from pymllm_cache_radix.plugin import pymllm_cache as radix
from simulated import SimulatedRunner, answer, info, request

OTHER = [1, 2, 3, 4, 0]


def make_engine(policy, *, pages: int = 100, max_running: int = 8) -> Engine:
    cache = policy().load_factory()(policy().config(page_size=1), CacheContext(1, pages))
    facts = info(pages=pages, page_size=1, budget=4, max_running=max_running)
    return Engine(facts, SimulatedRunner(1, 4), cache, seed=0)


def drain(engine: Engine, outputs: list[TokenOutput]) -> None:
    while engine.has_work:
        outputs += engine.step()
        engine.check_integrity()


def waiting(policy) -> Engine:
    engine = make_engine(policy, max_running=1)
    engine.submit(request("other", OTHER, 9))
    engine.submit(request("it", [3] * 6, 9))
    return engine


def prefilling(policy) -> Engine:
    engine = make_engine(policy)
    engine.submit(request("it", [3] * 40, 9))
    engine.submit(request("other", OTHER, 9))
    return engine


def decoding(policy) -> Engine:
    engine = make_engine(policy)
    engine.submit(request("it", [3], 9))
    engine.submit(request("other", OTHER, 9))
    return engine


def preempted(policy) -> Engine:
    engine = make_engine(policy, pages=14)
    engine.submit(request("other", OTHER, 9))
    engine.submit(request("it", [3, 2], 12))
    return engine


REACHED: dict[str, tuple[Callable, Callable]] = {
    "waiting": (waiting, lambda it, engine: it.phase is Phase.waiting),
    "mid-prefill": (prefilling, lambda it, engine: it.phase is Phase.running and 0 < it.computed < 40),
    "decoding": (decoding, lambda it, engine: it.output_length == 4),
    "preempted": (preempted, lambda it, engine: it.phase is Phase.waiting and it.output_length > 0),
}


@pytest.mark.parametrize("policy", [radix, chunk], ids=["radix", "chunk"])
@pytest.mark.parametrize("phase", REACHED)
def test_in_every_phase(phase: str, policy) -> None:
    build, reached = REACHED[phase]
    engine, outputs = build(policy), []
    it = engine._requests["it"]
    outputs += engine.step()
    while not reached(it, engine):
        assert it.phase is not Phase.finished, f"the request never was {phase}"
        outputs += engine.step()
    engine.abort("it")
    engine.check_integrity()
    engine.abort("it")
    engine.abort("nobody")
    drain(engine, outputs)
    mine = [output for output in outputs if output.id == "it"]
    assert [output.finish_reason for output in mine if output.finish_reason] == ["abort"]
    assert mine[-1].finish_reason == "abort"
    others = [output for output in outputs if output.id == "other"]
    assert [token for output in others for token in output.token_ids] == answer(OTHER, 9)
    assert [output.finish_reason for output in others if output.finish_reason] == ["length"]
    stats = engine.stats()
    assert (stats.running, stats.waiting, stats.pages_used) == (0, 0, 0)
    engine.abort("other")  # it has finished
    assert not engine.has_work


def test_in_the_step_that_finishes_it() -> None:
    engine, outputs = make_engine(radix), []
    engine.submit(request("it", [3], 1))
    outputs += engine.step()
    engine.abort("it")
    drain(engine, outputs)
    assert [output.finish_reason for output in outputs] == ["length"]


def test_the_computed_part_of_an_aborted_prompt_is_reused() -> None:
    engine, outputs = make_engine(radix), []
    engine.submit(request("it", [3, 1] * 20, 9))
    outputs += engine.step()
    engine.abort("it")
    engine.submit(request("again", [3, 1] * 20, 2))
    drain(engine, outputs)
    again = [output for output in outputs if output.id == "again"]
    assert again[0].cached_tokens == 4  # what a step of four tokens had computed
    assert [token for output in again for token in output.token_ids] == answer([3, 1] * 20, 2)


@pytest.mark.parametrize("cache", ["radix", "chunk"])
def test_half_of_many_at_random_times(tiny_llama, cache: str) -> None:
    rng = random.Random(3)
    shared = [rng.randrange(250) for _ in range(40)]
    prompts = [shared[: rng.randrange(40)] + [rng.randrange(250) for _ in range(1 + i % 30)] for i in range(40)]
    expected = reference_answers(tiny_llama, prompts, 20)
    pool = {"engine.max_total_tokens": 320, "cache.page_size": 8, "engine.max_batch_tokens": 24}
    client, inbox = start(tiny_llama, {"cache.plugin": cache, **pool}), Inbox()
    try:
        submitted = [threading.Event() for _ in prompts]

        def abort_half() -> None:
            for i in rng.sample(range(2, 40), 20):
                submitted[i].wait()
                inbox.wait_for_tokens(f"r{rng.randrange(2)}", rng.randrange(20))
                client.abort(f"r{i}")

        aborter = threading.Thread(target=abort_half)
        aborter.start()
        for i, prompt in enumerate(prompts):
            client.submit(EngineRequest(id=f"r{i}", token_ids=prompt, sampling=greedy(20)), inbox.deliver)
            submitted[i].set()
        ends = [inbox.wait(f"r{i}").finish_reason for i in range(40)]
        aborter.join()
        assert ends.count("abort") <= 20
        for i, end in enumerate(ends):
            found = inbox.tokens(f"r{i}")
            assert found == expected[i][: len(found)]
            assert end == "abort" or (end == "length" and len(found) == 20)
            assert inbox.reasons(f"r{i}") == [end]
        assert client.reset_cache() >= 0  # answered after the last step, whose numbers are then known
        stats = client.stats()
        assert (stats.running, stats.waiting, stats.pages_used) == (0, 0, 0)
        assert stats.pages_free == client.info.pages
    finally:
        client.close()
