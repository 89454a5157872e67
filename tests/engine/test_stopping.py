"""An answer ends exactly where it must: end tokens, least and most tokens, the context, the KV pool."""

from __future__ import annotations

import pytest
import torch

from engines import reference_answers, run, start, tokens
from inbox import Inbox
from pymllm.engine.client import EngineClient
from pymllm.engine.messages import EngineRequest, TokenOutput
from pymllm.errors import RequestError
from pymllm.llm import LLM
from pymllm.sampling import SamplingParams

PROMPT = [11, 200, 45, 3, 77]
COUNT = 16


@pytest.fixture(scope="module")
def engine(tiny_llama):
    client = start(tiny_llama)
    yield client
    client.close()


@pytest.fixture(scope="module")
def full(tiny_llama) -> list[int]:
    """What transformers answers when nothing stops it."""
    return reference_answers(tiny_llama, [PROMPT], COUNT)[0]


def params(**more) -> SamplingParams:
    return SamplingParams(temperature=0.0, **{"max_tokens": COUNT, **more}).with_defaults({})


def ask(client: EngineClient, sampling: SamplingParams, eos: list[int]) -> list[TokenOutput]:
    inbox = Inbox()
    client.submit(EngineRequest(id="it", token_ids=PROMPT, sampling=sampling, eos_token_ids=eos), inbox.deliver)
    inbox.wait("it")
    return inbox.of("it")


def ending(outputs: list[TokenOutput]) -> tuple[list[int], str | None, int | None]:
    assert all(output.finish_reason is None and output.stop_token is None for output in outputs[:-1])
    return tokens([outputs])[0], outputs[-1].finish_reason, outputs[-1].stop_token


@pytest.mark.parametrize("way", ["eos", "stop_token_ids"])
@pytest.mark.parametrize("index", [0, 1, 6, COUNT - 1])
def test_at_an_end_token(engine, full, way: str, index: int) -> None:
    end = full[index]
    first = full.index(end)
    if way == "eos":
        outputs = ask(engine, params(), [280, end])
    else:
        outputs = ask(engine, params(stop_token_ids=[280, end]), [])
    assert ending(outputs) == (full[: first + 1], "stop", end)


def test_at_the_most_tokens(engine, full) -> None:
    for count in (1, 2, COUNT):
        assert ending(ask(engine, params(max_tokens=count), [])) == (full[:count], "length", None)


def test_an_end_token_counts_more_than_the_most_tokens(engine, full) -> None:
    last = next(i for i in range(2, COUNT) if full[i] not in full[:i])
    outputs = ask(engine, params(max_tokens=last + 1), [full[last]])
    assert ending(outputs) == (full[: last + 1], "stop", full[last])


@pytest.mark.parametrize("least", [1, 2, 5, 9])
def test_not_before_the_least_tokens(engine, tiny_llama, full, least: int) -> None:
    """As transformers' min_new_tokens, which forbids the end tokens until then."""
    from transformers import AutoModelForCausalLM

    ends = sorted({full[0], full[3], full[7]})
    model = AutoModelForCausalLM.from_pretrained(tiny_llama, dtype=torch.float32).eval()
    ids = torch.tensor([PROMPT])
    expected = model.generate(
        ids, attention_mask=torch.ones_like(ids), do_sample=False, eos_token_id=ends, pad_token_id=0,
        min_new_tokens=least, max_new_tokens=COUNT,
    )[0, len(PROMPT) :].tolist()  # fmt: skip
    assert len(expected) > least
    for sampling, eos in (
        (params(min_tokens=least), ends),
        (params(min_tokens=least, stop_token_ids=ends[1:]), ends[:1]),
    ):
        found, reason, stop = ending(ask(engine, sampling, eos))
        assert found == expected
        assert (reason, stop) == (("stop", expected[-1]) if expected[-1] in ends else ("length", None))


def test_ignoring_the_models_own_end_tokens_leaves_the_others(tiny_llama, full) -> None:
    """The whole way, from the offline API on: the checkpoint's end token is the request's to ignore."""
    end = full[2]
    overrides = {"model.dtype": "float32", "engine.device": "cpu", "engine.max_total_tokens": 1024}
    with LLM(tiny_llama, overrides, progress=False) as llm:
        llm.frontend.eos_token_ids[:] = [end]

        def answer(**more) -> tuple[list[int], str | None]:
            [result] = llm.generate([PROMPT], params(**more))
            return result.outputs[0].token_ids, result.outputs[0].finish_reason

        assert answer() == (full[: full.index(end) + 1], "stop")
        assert answer(ignore_eos=True) == (full, "length")
        other = next(token for token in full[3:] if token != end)
        assert answer(ignore_eos=True, stop_token_ids=[other]) == (full[: full.index(other) + 1], "stop")


FILLING = [[i, 9, 8] * 10 for i in range(4)]
"""Prompts of 30 tokens, for which 34 are left of 64."""


@pytest.fixture(scope="module")
def filled(tiny_llama) -> list[list[int]]:
    """Their answers, by transformers."""
    return reference_answers(tiny_llama, FILLING, 34)


@pytest.mark.parametrize(
    "limits",
    [
        {"model.max_context": 64},
        {"engine.max_total_tokens": 64},
        {"engine.max_total_tokens": 79},  # a part of a page is no page
        {"engine.max_total_tokens": 64, "cache.page_size": 1, "cache.plugin": "chunk"},
        {"model.max_context": 64, "engine.max_total_tokens": 64, "engine.max_batch_tokens": 7},
    ],
    ids=str,
)
def test_when_the_context_or_the_pool_is_full(tiny_llama, filled, limits) -> None:
    client = start(tiny_llama, limits)
    try:
        open_ended = SamplingParams(temperature=0.0).with_defaults({})
        assert client.info.max_request_tokens == 64
        for sampling in (open_ended, params(max_tokens=34)):
            outputs = run(client, FILLING, sampling)  # each comes to the whole pool
            assert tokens(outputs) == filled
            assert [one[-1].finish_reason for one in outputs] == ["length"] * 4
        assert client.stats().pages_used == 0
        with pytest.raises(RequestError, match="at most 34"):
            run(client, FILLING[:1], params(max_tokens=35))
        one_left = [5] * 63
        assert [len(found) for found in tokens(run(client, [one_left], open_ended))] == [1]
        with pytest.raises(RequestError, match="64 tokens"):
            run(client, [[5] * 64], open_ended)
    finally:
        client.close()


def test_a_context_of_two_tokens(tiny_llama) -> None:
    client = start(tiny_llama, {"model.max_context": 2})
    try:
        assert tokens(run(client, [[5]], params(max_tokens=None))) == reference_answers(tiny_llama, [[5]], 1)
    finally:
        client.close()


def test_a_context_of_one_token_starts_and_refuses_everything(tiny_llama) -> None:
    client = start(tiny_llama, {"model.max_context": 1})
    try:
        with pytest.raises(RequestError, match="the model's context of 1 tokens"):
            run(client, [[5]], params(max_tokens=None))
    finally:
        client.close()
