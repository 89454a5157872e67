"""A cache in fewer bits: as small as it should be, and the same answers with hits, chunks and preemption as without."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from engines import answers, greedy, run, start, tokens
from pymllm.errors import PluginError

COUNT = 12
FP8 = {"attention.plugin": "torch", "attention.kv_dtype": "fp8"}


@pytest.fixture(scope="module")
def expected(tiny_llama, prompts):
    """Greedy answers with an fp8 cache that nothing is reused from."""
    client = start(tiny_llama, {**FP8, "cache.plugin": "chunk", "engine.max_batch_tokens": 512})
    try:
        return answers(client, prompts, COUNT)
    finally:
        client.close()


VARIANTS: Mapping[str, Mapping[str, Any]] = {
    "default": {},
    "budget 5": {"engine.max_batch_tokens": 5},
    "preempting": {"engine.max_total_tokens": 128, "cache.page_size": 4, "cache.plugin": "chunk"},
    "evicting": {"engine.max_total_tokens": 128, "cache.page_size": 4},
    "auto": {"attention.plugin": "auto"},
}


@pytest.mark.parametrize("overrides", VARIANTS.values(), ids=VARIANTS.keys())
def test_answers_do_not_depend_on_what_is_cached(tiny_llama, prompts, expected, overrides) -> None:
    assert [len(answer) for answer in expected] == [COUNT] * len(prompts)
    client = start(tiny_llama, {**FP8, **overrides})
    try:
        assert client.info.kv_dtype == "fp8"
        assert answers(client, prompts, COUNT) == expected
        assert answers(client, prompts, COUNT) == expected  # now with whatever is cached
    finally:
        client.close()


def test_a_hit_reads_what_a_miss_wrote(tiny_llama, prompts) -> None:
    client = start(tiny_llama, FP8)
    try:
        [miss] = run(client, [prompts[7]], greedy(COUNT, logprobs=1))
        [hit] = run(client, [prompts[7]], greedy(COUNT, logprobs=1))
        assert (miss[0].cached_tokens, hit[0].cached_tokens) == (0, 80)  # of 90 tokens, in pages of 16
        assert tokens([hit]) == tokens([miss])
        for first, second in zip(miss, hit):
            assert second.logprobs[0].logprob == pytest.approx(first.logprobs[0].logprob, abs=1e-4)
    finally:
        client.close()


def test_rounding_shows_and_is_small(tiny_llama, prompts) -> None:
    found = {}
    for kind in ("auto", "bf16", "fp8"):
        client = start(tiny_llama, {"attention.plugin": "torch", "attention.kv_dtype": kind})
        try:
            outputs = run(client, prompts[4:8], greedy(1, logprobs=1))
            found[kind] = [one[0].logprobs[0].logprob for one in outputs]
        finally:
            client.close()
    errors = {kind: max(abs(a - b) for a, b in zip(values, found["auto"])) for kind, values in found.items()}
    # 8 bits of mantissa against 4: sixteen times the error.
    assert 0 < errors["bf16"] < errors["fp8"] < 0.2


@pytest.mark.parametrize(("kind", "name", "size"), [("auto", "float32", 4), ("bf16", "bfloat16", 2), ("fp8", "fp8", 1)])
def test_a_page_is_as_small_as_its_numbers(tiny_llama, kind: str, name: str, size: int) -> None:
    client = start(tiny_llama, {"attention.plugin": "torch", "attention.kv_dtype": kind}, process=kind == "fp8")
    try:
        assert client.info.kv_dtype == name
        assert client.info.page_bytes == 3 * 16 * 2 * 16 * 2 * size  # layers, tokens, heads, numbers, keys and values
    finally:
        client.close()


def test_what_no_backend_can_is_refused(tiny_llama) -> None:
    with pytest.raises(PluginError, match=r"attention\.kv_dtype: int8 .* \(it can: auto, bf16, fp8\)"):
        start(tiny_llama, {"attention.plugin": "torch", "attention.kv_dtype": "int8"})
