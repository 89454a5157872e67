"""A cache in fewer bits on a CUDA device: the answers of the reference backend on a CPU, with graphs, hits, preemption.

Where float32 differs in its last bit, as it may between devices and numbers of rows, a value between two that the cache
can hold is kept as either, which differ by an eighth (fp8) or a step. So a token is compared only if it and all before
it were clear in the reference: likelier than the second by more than one such value changes.
"""

from __future__ import annotations

import random
from importlib.util import find_spec

import pytest

from engines import answers, clear_answers, greedy, run, start, tokens
from pymllm.testing.tiny import make_tiny_checkpoint

pytestmark = pytest.mark.gpu

COUNT = 12
CLEAR = {"fp8": 0.01, "int8": 0.01, "int4": 0.05}
"""Of log-probability: several times what was seen of one value."""
SMALLER = {"auto": 1.0, "fp8": 2.0, "int8": 64 * 2 / (64 + 4), "int4": 64 * 2 / (32 + 4)}
"""How many times fewer bytes than 16 bits take 64 numbers, with scale and offset."""
NEAR = {"fp8": 0.3, "int8": 0.15, "int4": 1.0}
"""Of log-probability, from a cache of 16 bits: several times what was seen on a CPU of models of this size."""

VARIANTS = {
    "default": {},
    "no reuse": {"cache.plugin": "chunk"},
    "budget 5": {"engine.max_batch_tokens": 5},
    "preempting": {"engine.max_total_tokens": 128, "cache.page_size": 4, "cache.plugin": "chunk"},
    "no graphs": {"engine.cuda_graphs": False},
}


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    rng = random.Random(5)
    shared = [rng.randrange(250) for _ in range(60)]
    alone = [[rng.randrange(250) for _ in range(n)] for n in (1, 15, 16, 33, 90)]
    return alone + [shared[:cut] + [rng.randrange(250) for _ in range(9)] for cut in (20, 48)]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return make_tiny_checkpoint(tmp_path_factory.mktemp("qwen3"), "qwen3", head_dim=64)


@pytest.fixture(scope="module", params=CLEAR)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def expected(checkpoint, prompts, kind):
    client = start(checkpoint, {"attention.plugin": "torch", "attention.kv_dtype": kind})
    try:
        clear = clear_answers(run(client, prompts, greedy(COUNT, logprobs=2)), CLEAR[kind])
    finally:
        client.close()
    assert sum(map(len, clear)) > 0.4 * COUNT * len(prompts)
    return clear


def clearly(found, expected) -> list[list[int]]:
    return [answer[: len(clear)] for answer, clear in zip(found, expected)]


@pytest.mark.parametrize("attention", ["torch", "triton"])
@pytest.mark.parametrize("overrides", VARIANTS.values(), ids=VARIANTS.keys())
def test_answers_in_float32(checkpoint, prompts, kind, expected, attention, overrides) -> None:
    options = {"engine.device": "cuda", "attention.plugin": attention, "attention.kv_dtype": kind}
    client = start(checkpoint, {**options, **overrides})
    try:
        assert client.info.kv_dtype == kind
        assert clearly(answers(client, prompts, COUNT), expected) == expected
        assert clearly(answers(client, prompts, COUNT), expected) == expected  # now with whatever is cached
    finally:
        client.close()


@pytest.mark.parametrize("attention", ["triton", "flashinfer"])
def test_half_precision_is_near_a_cache_of_16_bits(checkpoint, prompts, attention, kind) -> None:
    if attention == "flashinfer" and find_spec("flashinfer") is None:
        pytest.skip("needs flashinfer-python")
    found = {}
    for each in ("auto", kind):
        options = {"engine.device": "cuda", "model.dtype": "bfloat16", "attention.plugin": attention}
        client = start(checkpoint, {**options, "attention.kv_dtype": each})
        try:
            misses = run(client, prompts, greedy(COUNT, logprobs=1))
            hits = run(client, prompts, greedy(COUNT, logprobs=1))
            size = client.info.page_bytes
        finally:
            client.close()
        assert [len(answer) for answer in tokens(misses) + tokens(hits)] == 2 * [COUNT] * len(prompts)
        assert hits[4][0].cached_tokens == 80  # of 90 tokens, in pages of 16
        first = [[one[0].logprobs[0].logprob for one in outputs] for outputs in (misses, hits)]
        assert first[1] == pytest.approx(first[0], abs=0.15 if each != "int4" else 0.3)
        found[each] = (first[0], size)
    assert found["auto"][1] == pytest.approx(found[kind][1] * SMALLER[kind])
    assert found[kind][0] != found["auto"][0]
    assert found[kind][0] == pytest.approx(found["auto"][0], abs=NEAR[kind])
