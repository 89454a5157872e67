"""What fails for one request ends that request alone; what fails for all ends each of them exactly once."""

from __future__ import annotations

import queue
from collections.abc import Callable

import pytest
from safetensors.torch import load_file, save_file

from engines import TINY, answers, greedy, reference_answers, run, start, tokens
from inbox import Inbox
from pymllm.compose import compose
from pymllm.engine.assemble import assemble
from pymllm.engine.client import EngineClient
from pymllm.engine.engine import Engine
from pymllm.engine.messages import EngineRequest, TokenOutput
from pymllm.engine.plan import ItemResult, StepPlan
from pymllm.engine.thread import ThreadClient
from pymllm.errors import EngineDeadError
from pymllm.interfaces.cache import CacheContext
from pymllm.testing.tiny import make_tiny_checkpoint
from pymllm_cache_radix.plugin import pymllm_cache as radix
from simulated import SimulatedRunner, answer, info, request

COUNT = 8
POISON = 77


class Guilty(SimulatedRunner):
    """Fails whenever a guilty request has come to ``after`` tokens of answer: when its step is launched, or
    (``late``) when it is waited for."""

    def __init__(self, after: int, late: bool) -> None:
        super().__init__(page_size=4, budget=16)
        self._after = after
        self._late = late

    def launch(self, plan: StepPlan) -> Callable[[], list[ItemResult]]:
        for item in plan.items:
            if item.request.spec.id.startswith("guilty") and item.answer_index >= self._after:
                if self._late:
                    return self._fail
                self._fail()
        return super().launch(plan)

    def _fail(self) -> list[ItemResult]:
        raise ValueError("this one cannot be computed")


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("after", [0, 1, 3])
def test_a_request_that_cannot_be_computed_ends_alone(after: int, late: bool, overlap: bool) -> None:
    facts = info(pages=100, page_size=4, budget=16, max_running=8)
    policy = radix().load_factory()(radix().config(page_size=4), CacheContext(4, 100))
    engine = Engine(facts, Guilty(after, late), policy, seed=0, overlap=overlap)
    prompts = {"a": [1, 2, 3] * 5, "guilty-b": [4] * 30, "c": [2], "guilty-d": [3], "e": [4] * 30}
    for name, prompt in prompts.items():
        engine.submit(request(name, prompt, COUNT))
    outputs = []
    while engine.has_work:
        outputs += engine.step()
        engine.check_integrity()
    for name, prompt in prompts.items():
        own = [output for output in outputs if output.id == name]
        guilty = name.startswith("guilty")
        assert [token for output in own for token in output.token_ids] == answer(prompt, after if guilty else COUNT)
        ends = [output for output in own if output.finish_reason]
        assert [end.finish_reason for end in ends] == ["error" if guilty else "length"]
        assert ends[0].error == (
            "computing this request failed: ValueError: this one cannot be computed" if guilty else None
        )
    assert engine.stats().pages_used == 0


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("late", [False, True])
def test_a_lost_device_ends_the_engine_and_every_request_once(late: bool, overlap: bool) -> None:
    class Lost(Guilty):
        def healthy(self) -> bool:
            return False

    facts = info(pages=100, page_size=4, budget=16, max_running=8)
    policy = radix().load_factory()(radix().config(page_size=4), CacheContext(4, 100))
    client = ThreadClient(lambda: Engine(facts, Lost(2, late), policy, seed=0, overlap=overlap))
    arrived: queue.SimpleQueue[TokenOutput] = queue.SimpleQueue()
    with client.together():
        for name in ("a", "guilty", "b"):
            client.submit(request(name, [1, 2], COUNT), arrived.put)
    last = {}
    while len(last) < 3:
        output = arrived.get(timeout=30)
        assert output.id not in last
        if output.finish_reason is not None:
            last[output.id] = output
    assert {output.finish_reason for output in last.values()} == {"error"}
    assert all("the device failed" in output.error for output in last.values())
    assert not client.alive
    client.close()


def test_the_model_raising_for_one_request(tiny_llama, prompts) -> None:
    def build() -> Engine:
        engine = assemble(compose(None, {"model.path": str(tiny_llama), **TINY}), progress=False)
        real = engine._runner

        class Wrapped:
            def launch(self, plan: StepPlan) -> Callable[[], list[ItemResult]]:
                if any(item.request.tokens[0] == POISON for item in plan.items):
                    raise RuntimeError("out of luck")
                return real.launch(plan)

            def healthy(self) -> bool:
                return real.healthy()

        engine._runner = Wrapped()
        return engine

    client = ThreadClient(build)
    try:
        outputs = run(client, [[POISON, 1, 2], *prompts], greedy(COUNT))
        assert [output.finish_reason for output in outputs[0]] == ["error"]
        assert tokens(outputs[1:]) == reference_answers(tiny_llama, prompts, COUNT)
        assert client.stats().pages_used == 0
    finally:
        client.close()


@pytest.fixture(scope="module")
def poisoned(tmp_path_factory):
    """The checkpoint of ``tiny_llama``, except that the embedding of one token is not a number."""
    folder = make_tiny_checkpoint(tmp_path_factory.mktemp("poisoned"), "llama")
    weights = load_file(folder / "model.safetensors")
    weights["model.embed_tokens.weight"][POISON] = float("nan")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def without_poison(prompts: list[list[int]]) -> list[list[int]]:
    return [[token if token != POISON else POISON + 1 for token in prompt] for prompt in prompts]


@pytest.mark.parametrize("cache", ["radix", "chunk"])
@pytest.mark.parametrize("budget", [16, 64])
def test_logits_that_are_not_numbers_end_their_request_alone(poisoned, tiny_llama, prompts, cache, budget) -> None:
    good = without_poison(prompts)
    expected = reference_answers(tiny_llama, good, COUNT)
    client = start(poisoned, {"cache.plugin": cache, "engine.max_batch_tokens": budget})
    try:
        bad = [[POISON], [5] * 40 + [POISON], [POISON] + [6] * 70]
        mixed = [prompt for pair in zip(good, bad * 4) for prompt in pair]
        outputs = run(client, mixed, greedy(COUNT))
        assert tokens(outputs[::2]) == expected
        for one in outputs[1::2]:
            assert [output.finish_reason for output in one] == ["error"]
            assert one[0].token_ids == []
            assert "not numbers" in one[0].error
        assert client.stats().pages_used == 0
        assert answers(client, good, COUNT) == expected  # in pages that held NaN
    finally:
        client.close()


@pytest.mark.parametrize("budget", [3, 16, 64])
def test_kv_that_is_not_numbers_is_not_shared(poisoned, budget) -> None:
    client = start(poisoned, {"engine.max_batch_tokens": budget})
    try:
        run(client, [[POISON] + [6] * 70], greedy(COUNT))
        assert client.stats().pages_cached == 0
        run(client, [[6] * 20 + [POISON] + [6] * 50], greedy(COUNT))
        assert client.stats().pages_cached <= 1  # of pages of 16 tokens, the first has no poison
    finally:
        client.close()


def test_a_receiver_that_raises_harms_nobody(tiny_llama, prompts) -> None:
    client, inbox = start(tiny_llama), Inbox()

    def bad(output) -> None:
        inbox.deliver(output)
        raise RuntimeError("a bug in a receiver")

    try:
        for name, receiver in (("bad", bad), ("good", inbox.deliver)):
            client.submit(EngineRequest(id=name, token_ids=prompts[3], sampling=greedy(COUNT)), receiver)
        inbox.wait("bad")
        inbox.wait("good")
        assert inbox.tokens("bad") == inbox.tokens("good") == reference_answers(tiny_llama, prompts[3:4], COUNT)[0]
        assert client.alive
        client.submit(EngineRequest(id="bad", token_ids=prompts[3], sampling=greedy(1)), inbox.deliver)  # id is free
    finally:
        client.close()


def dying_client(pages: int = 10_000) -> EngineClient:
    """A client whose cache policy fails when a prompt of 13 tokens arrives."""

    class Failing(radix().load_factory()):  # type: ignore[misc]
        def match(self, key):
            if len(key) == 12:
                raise ZeroDivisionError("a bug in a policy")
            return super().match(key)

    def build() -> Engine:
        policy = Failing(radix().config(page_size=4), CacheContext(4, pages))
        facts = info(pages=pages, page_size=4, budget=16, max_running=64)
        return Engine(facts, SimulatedRunner(4, 16), policy, seed=0)

    return ThreadClient(build)


def test_an_engine_that_fails_ends_every_request_once() -> None:
    client, inbox = dying_client(), Inbox()

    def third_token_kills(output) -> None:
        inbox.deliver(output)
        if output.id == "open-0" and len(inbox.tokens("open-0")) == 3:
            client.submit(request("fatal", [1] * 13, 5), inbox.deliver)

    for i in range(10):
        client.submit(request(f"open-{i}", [i % 5] * 20, 300), third_token_kills)
    for name in ["fatal", *(f"open-{i}" for i in range(10))]:
        end = inbox.wait(name)
        assert end.error == "the engine failed: ZeroDivisionError: a bug in a policy"
        assert inbox.reasons(name) == ["error"]
    assert not client.alive
    with pytest.raises(EngineDeadError, match="a bug in a policy"):
        client.submit(request("late", [1], 5), inbox.deliver)
    with pytest.raises(EngineDeadError, match="a bug in a policy"):
        client.reset_cache()
    client.abort("open-0")
    client.close()
    client.close()
    assert inbox.reasons("open-0") == ["error"]


def test_questions_that_are_open_when_the_engine_fails_are_answered() -> None:
    client, inbox = dying_client(), Inbox()
    client._commands.put(lambda engine: inbox.deliver(None))  # type: ignore[arg-type, return-value]
    with pytest.raises(EngineDeadError, match="the engine failed: AttributeError"):
        client.reset_cache()
    client.close()


@pytest.mark.parametrize("closer", ["the owner", "a receiver"])
def test_closing_aborts_what_is_open_once(closer: str) -> None:
    client, inbox = dying_client(), Inbox()

    def closing(output) -> None:
        inbox.deliver(output)
        if closer == "a receiver" and len(inbox.tokens("b")) == 2:
            client.close()

    client.submit(request("a", [1] * 20, 5000), inbox.deliver)
    client.submit(request("b", [2] * 20, 5000), closing)
    if closer == "the owner":
        inbox.wait_for_tokens("b", 1)
        client.close()
    assert inbox.wait("a").error is None
    assert inbox.wait("b").error is None
    client.close()
    assert (inbox.reasons("a"), inbox.reasons("b")) == (["abort"], ["abort"])
    assert not client.alive
    with pytest.raises(EngineDeadError, match="the engine was closed"):
        client.submit(request("late", [1], 5), inbox.deliver)
