"""Requests that are submitted together are computed together, even if submitting them takes a while."""

from __future__ import annotations

import time

from engines import run
from pymllm.engine.engine import Engine
from pymllm.engine.thread import ThreadClient
from pymllm.interfaces.cache import CacheContext
from pymllm_cache_chunk.plugin import pymllm_cache as chunk
from simulated import SimulatedRunner, answer, info, request


def make_client() -> tuple[ThreadClient, SimulatedRunner]:
    runner = SimulatedRunner(page_size=4, budget=64)
    policy = chunk().load_factory()(chunk().config(page_size=4), CacheContext(4, 100))
    facts = info(pages=100, page_size=4, budget=64, max_running=8)
    return ThreadClient(lambda: Engine(facts, runner, policy, seed=0)), runner


def test_the_first_step_has_them_all() -> None:
    client, runner = make_client()
    outputs = []
    try:
        with client.together():
            for i in range(5):
                client.submit(request(str(i), [1, 2, 3], 1), outputs.append)
                time.sleep(0.002)
        while len(outputs) < 5:
            time.sleep(0.001)
    finally:
        client.close()
    assert [len(plan.items) for plan in runner.steps] == [5]
    assert all(output.token_ids == answer([1, 2, 3], 1) for output in outputs)


def test_the_engine_does_not_wait_for_long() -> None:
    client, runner = make_client()
    try:
        with client.together():
            sampling = request("x", [1], 1).sampling
            assert run(client, [[1, 2]], sampling)  # ends although the block has not
    finally:
        client.close()
    assert len(runner.steps) == 1
