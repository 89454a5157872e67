"""Quantized weights over a quantized cache: the same answers with hits, chunks, preemption and eviction as without.

Weights are quantized while they load. What a step computes differs in float32's last bits with what else is in it, so
a cached number, and with w8a8 an activation, may be rounded to either of its neighbours. Tokens are compared as long as
they were clear: likelier than the second by more than such roundings change. With weights in full precision:
``test_kv_dtypes.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from engines import clear_answers, greedy, run, start, tokens
from pymllm.engine.messages import TokenOutput
from pymllm.errors import PymllmError
from pymllm.testing.tiny import make_tiny_checkpoint

COUNT = 8
WEIGHTS: Mapping[str, Mapping[str, Any]] = {
    "w8a8": {"quant.plugin": "w8a8-cutlass", "quant.online": True},
    "w4a16": {"quant.plugin": "w4a16", "quant.online": True, "quant.group_size": 32},
}
CACHES = ("auto", "int8", "int4")
MARGIN = {"auto": 0.02, "int8": 0.02, "int4": 0.1}
"""Of log-probability, by what the cache holds: several times what was seen of one rounding."""

SMALL = {"engine.max_total_tokens": 128, "cache.page_size": 4}
VARIANTS: Mapping[str, Mapping[str, Any]] = {
    "radix": {"engine.max_batch_tokens": 512},
    "chunk, budget 16": {"engine.max_batch_tokens": 16, "cache.plugin": "chunk"},
    "radix, small": SMALL,
    "chunk, small": {**SMALL, "cache.plugin": "chunk"},
}


@pytest.fixture(scope="module")
def tiny_qwen3(tmp_path_factory):
    return make_tiny_checkpoint(tmp_path_factory.mktemp("qwen3"), "qwen3")


@pytest.fixture(scope="module")
def prompts(prompts) -> list[list[int]]:
    """Of more than a page."""
    return prompts[4:]


@pytest.fixture(scope="module", params=WEIGHTS)
def weights(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module", params=CACHES)
def settings(request: pytest.FixtureRequest, weights: str) -> dict[str, Any]:
    return {**WEIGHTS[weights], "attention.plugin": "torch", "attention.kv_dtype": request.param}


@pytest.fixture(scope="module")
def plain(tiny_qwen3, prompts, settings) -> list[list[TokenOutput]]:
    """Answers with a cache that nothing is reused from, each prompt in one step, in a pool for all of them."""
    client = start(tiny_qwen3, {**settings, "cache.plugin": "chunk", "engine.max_batch_tokens": 512})
    try:
        return run(client, prompts, greedy(COUNT, logprobs=2))
    finally:
        client.close()


@pytest.fixture(scope="module")
def expected(plain, prompts, settings) -> list[list[int]]:
    clear = clear_answers(plain, MARGIN[settings["attention.kv_dtype"]])
    assert sum(map(len, clear)) > 0.35 * COUNT * len(prompts)
    return clear


@pytest.mark.parametrize("name", VARIANTS)
def test_answers_do_not_depend_on_what_is_cached(tiny_qwen3, prompts, settings, expected, name: str) -> None:
    client = start(tiny_qwen3, {**settings, **VARIANTS[name]})
    try:
        for _ in range(2):  # the second time with whatever is cached
            found = tokens(run(client, prompts, greedy(COUNT)))
            assert [answer[: len(clear)] for answer, clear in zip(found, expected)] == expected
        stats = client.stats()
    finally:
        client.close()
    assert (stats.total_cached_tokens > 0) == name.startswith("radix")
    assert (stats.total_preemptions > 0) == name.endswith("small")
    assert (stats.total_evicted_pages > 0) == (name == "radix, small")


def test_both_settings_are_read(tiny_qwen3, prompts, settings, plain) -> None:
    """Each changes what is computed."""
    without = [
        {**settings, "attention.kv_dtype": "auto"},
        {key: value for key, value in settings.items() if not key.startswith("quant.")},
    ]
    for index, less in enumerate(without):
        client = start(tiny_qwen3, {**less, "cache.plugin": "chunk", "engine.max_batch_tokens": 512})
        try:
            found = run(client, prompts, greedy(1, logprobs=2))
        finally:
            client.close()
        first = [[one[0].logprobs[0].logprob for one in outputs] for outputs in (found, plain)]
        assert (first[0] == first[1]) == (less == settings), f"case {index}"


W8A8_CUTLASS = {**WEIGHTS["w8a8"], "quant.kernels": "cutlass"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"attention.kv_dtype": "int3"}, r"attention\.kv_dtype: expected one of auto, bf16, fp8, int8, int4"),
        (
            {"attention.plugin": "triton", "attention.kv_dtype": "int8", **WEIGHTS["w4a16"]},
            "attention plugin 'triton' cannot serve this model here: runs on cuda, not on cpu",
        ),
        ({"attention.kv_dtype": "int4", **W8A8_CUTLASS}, r"quant\.kernels is cutlass, but this engine is on a CPU"),
        ({"attention.kv_dtype": "int4", "quant.plugin": "w4a16"}, r"set quant\.online to true"),
    ],
    ids=["a dtype", "a backend elsewhere", "kernels elsewhere", "weights in full precision"],
)
def test_what_cannot_work_is_refused_by_name(tiny_qwen3, options: dict[str, Any], message: str) -> None:
    with pytest.raises(PymllmError, match=message) as caught:
        start(tiny_qwen3, options)
    assert "\n" not in str(caught.value)
