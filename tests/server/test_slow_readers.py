"""Who reads slowly gets several tokens at a time and nothing else: not less, not in another order, no errors lost."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest

from pymllm.compose import compose
from pymllm.frontend.frontend import Frontend
from pymllm.frontend.generation import Delta
from pymllm.frontend.launch import launch_frontend
from pymllm.sampling import SamplingParams
from pymllm.server.answers import Answers
from pymllm.server.mailbox import Mailbox
from pymllm.server.metrics import Metrics
from pymllm.server.protocol.errors import ApiError

COUNT = 30


@pytest.fixture(scope="module")
def frontend(settings: dict[str, Any]) -> Any:
    frontend = launch_frontend(compose(None, settings), process=False, progress=False)
    yield frontend
    frontend.client.close()


def run(frontend: Frontend, work: Callable[[Answers, asyncio.Event], Coroutine[Any, Any, Any]], n: int = 1) -> Any:
    """Start two prompts, ``n`` answers each; ``work`` gets the answers, and an event that is set once all have come."""

    async def main() -> Any:
        settled = asyncio.Event()
        metrics = Metrics(lambda: frontend.client, {})
        mailbox = Mailbox(asyncio.get_running_loop())
        answers = Answers("a", 2 * n, metrics, mailbox, lambda id: settled.set())
        params = SamplingParams(n=n, max_tokens=COUNT, temperature=0.0, ignore_eos=True, logprobs=0)
        await answers.start([[1, 2, 3], [4, 5]], [params, params], frontend)
        try:
            return await asyncio.wait_for(work(answers, settled), 60)
        finally:
            answers.close()

    return asyncio.run(main())


async def read(batches: AsyncIterator[list[tuple[int, Delta]]]) -> tuple[int, dict[tuple[int, int], Delta]]:
    """How many deltas came, and each answer as a whole."""
    wholes: dict[tuple[int, int], Delta] = {}
    count = 0
    async for arrivals in batches:
        assert len({(prompt, delta.index) for prompt, delta in arrivals}) == len(arrivals)
        count += len(arrivals)
        for prompt, delta in arrivals:
            if (prompt, delta.index) in wholes:
                wholes[prompt, delta.index].absorb(delta)
            else:
                wholes[prompt, delta.index] = delta
    return count, wholes


@pytest.mark.parametrize("n", [1, 3])
def test_what_was_not_read_in_time_comes_in_one_piece(frontend: Frontend, n: int) -> None:
    async def at_once(answers: Answers, settled: asyncio.Event) -> Any:
        return await read(answers.batches())

    async def late(answers: Answers, settled: asyncio.Event) -> Any:
        await settled.wait()
        return await read(answers.batches())

    several, expected = run(frontend, at_once, n)
    one_each, found = run(frontend, late, n)
    assert one_each == 2 * n < several
    assert found.keys() == expected.keys() == {(prompt, index) for prompt in (0, 1) for index in range(n)}
    for key, whole in found.items():
        assert (whole.text, whole.token_ids) == (expected[key].text, expected[key].token_ids)
        assert len(whole.token_ids) == len(whole.logprobs) == COUNT
        assert whole.finish_reason == "length"


def test_an_error_comes_after_all_that_came_before_it() -> None:
    metrics = Metrics(lambda: pytest.fail("no engine is asked"), {})

    async def main() -> list[str]:
        answers = Answers("a", 2, metrics, Mailbox(asyncio.get_running_loop()), lambda id: None)
        answers._expected = 2
        for prompt, delta in [
            (0, Delta(0, "a", [1])),
            (1, Delta(0, "x", [2])),
            (0, Delta(0, "b", [3])),
            (0, Delta(0, finish_reason="error", error="it broke")),
        ]:
            answers._arrive(prompt, delta)
        texts: list[str] = []
        with pytest.raises(ApiError, match="it broke"):
            await keep(answers, texts)
        return texts

    async def keep(answers: Answers, texts: list[str]) -> None:
        async for arrivals in answers.batches():
            texts += [delta.text for _, delta in arrivals]

    assert asyncio.run(main()) == ["ab", "x"]


def test_calls_of_many_threads_are_all_made_in_order_and_survive_a_failure() -> None:
    made: list[tuple[int, int]] = []

    async def main() -> None:
        mailbox, done = Mailbox(asyncio.get_running_loop()), asyncio.Event()

        def call(thread: int, number: int) -> None:
            made.append((thread, number))
            if len(made) == 4000:
                done.set()
            if number % 100 == 7:
                raise ValueError("one of many")

        def post(thread: int) -> None:
            for number in range(1000):
                mailbox.post(call, thread, number)

        threads = [threading.Thread(target=post, args=(thread,)) for thread in range(4)]
        for thread in threads:
            thread.start()
        await asyncio.wait_for(done.wait(), 30)
        for thread in threads:
            thread.join()

    asyncio.run(main())
    for thread in range(4):
        assert [number for who, number in made if who == thread] == list(range(1000))


def test_calls_to_a_loop_that_has_ended_are_dropped() -> None:
    loop = asyncio.new_event_loop()
    mailbox = Mailbox(loop)
    loop.close()
    mailbox.post(pytest.fail, "nobody is there")
