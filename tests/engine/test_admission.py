"""What can never be served is refused at the door, with the numbers and the field."""

from __future__ import annotations

import pytest

from pymllm.engine.admission import check, max_length
from pymllm.engine.messages import EngineInfo, EngineRequest
from pymllm.errors import RequestError
from pymllm.sampling import SamplingParams
from simulated import info

VOCAB = 5  # of simulated.info, as is a context of 10,000 tokens


OUTSIDE = " outside the vocabulary (0 to 4)"


def facts(pages: int = 1000) -> EngineInfo:
    return info(pages=pages, page_size=16, budget=64, max_running=8)


def request(tokens: list[int], **sampling) -> EngineRequest:
    return EngineRequest(id="r", token_ids=tokens, sampling=SamplingParams(**sampling).with_defaults({}))


@pytest.mark.parametrize(
    "asked, field, message",
    [
        (request([]), "prompt", "the prompt is empty; give at least one token"),
        (request([0, 5]), "prompt", "token id 5 is" + OUTSIDE),
        (request([0, -1, 9]), "prompt", "token id -1 is" + OUTSIDE),
        (
            request([0] * 10_000),
            "prompt",
            "the prompt has 10000 tokens, but must fit with at least one token of answer into the model's context of "
            "10000 tokens; shorten it",
        ),
        (
            request([0] * 9_000, max_tokens=1001),
            "max_tokens",
            "prompt (9000 tokens) and max_tokens (1001) together exceed the model's context of 10000 tokens; "
            "max_tokens can be at most 1000",
        ),
        (request([0], logit_bias={5: 1.0}), "logit_bias", "logit_bias: token id 5 is" + OUTSIDE),
        (request([0], stop_token_ids=[1, 99]), "stop_token_ids", "stop_token_ids: token id 99 is" + OUTSIDE),
    ],
    ids=["empty", "too high", "negative", "long prompt", "long answer", "logit_bias", "stop_token_ids"],
)  # fmt: skip
def test_refusals_say_what_to_do(asked: EngineRequest, field: str, message: str) -> None:
    with pytest.raises(RequestError) as caught:
        check(asked, facts())
    assert str(caught.value) == message
    assert caught.value.field == field


def test_a_small_pool_is_named_as_the_limit() -> None:
    with pytest.raises(RequestError, match=r"fit .* into the KV pool, which holds 160 tokens for one request"):
        check(request([0] * 160), facts(pages=10))


@pytest.mark.parametrize(
    "asked, most",
    [
        (request([0, 4]), 10_000),
        (request([0] * 9_999), 10_000),
        (request([0] * 9_999, max_tokens=1), 10_000),
        (request([0] * 9_000, max_tokens=1000), 10_000),
        (request([3] * 7, max_tokens=5, stop_token_ids=[0, 4], logit_bias={0: 1.0, 4: 1.0}), 12),
    ],
)
def test_what_just_fits_is_taken(asked: EngineRequest, most: int) -> None:
    check(asked, facts())
    assert max_length(asked, facts()) == most


def test_without_max_tokens_an_answer_may_fill_the_pool() -> None:
    asked = EngineRequest(id="r", token_ids=[1], sampling=SamplingParams(temperature=0.0).with_defaults({}))
    assert max_length(asked, facts(pages=10)) == 160
