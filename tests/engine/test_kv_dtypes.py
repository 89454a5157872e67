"""A cache in fewer bits: as small as it should be, and the same answers with hits, chunks and preemption as without.

What a step computes differs in float32's last bits with what else is in it, so a number in the middle of two that the
cache can hold may be kept as either. Tokens are compared as long as they were clear: likelier than the second by more
than one such number changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from engines import answers, clear_answers, greedy, run, start, tokens
from pymllm.memory.budget import Budget, kv_pages
from pymllm.testing.tiny import make_tiny_checkpoint

COUNT = 12
KINDS = {"fp8": 0.01, "int8": 0.005, "int4": 0.1}
"""Of log-probability: several times what was seen of one number that is kept as its neighbour."""

VARIANTS: Mapping[str, Mapping[str, Any]] = {
    "default": {},
    "budget 5": {"engine.max_batch_tokens": 5},
    "preempting": {"engine.max_total_tokens": 128, "cache.page_size": 4, "cache.plugin": "chunk"},
    "evicting": {"engine.max_total_tokens": 128, "cache.page_size": 4},
}


def options(kind: str) -> dict[str, str]:
    return {"attention.plugin": "torch", "attention.kv_dtype": kind}


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def expected(tiny_llama, prompts, kind):
    """Greedy answers with a cache that nothing is reused from, as far as they are clear."""
    client = start(tiny_llama, {**options(kind), "cache.plugin": "chunk", "engine.max_batch_tokens": 512})
    try:
        clear = clear_answers(run(client, prompts, greedy(COUNT, logprobs=2)), KINDS[kind])
    finally:
        client.close()
    assert sum(map(len, clear)) > 0.5 * COUNT * len(prompts)
    return clear


@pytest.mark.parametrize("overrides", VARIANTS.values(), ids=VARIANTS.keys())
def test_answers_do_not_depend_on_what_is_cached(tiny_llama, prompts, kind, expected, overrides) -> None:
    client = start(tiny_llama, {**options(kind), **overrides})
    try:
        assert client.info.kv_dtype == kind
        for _ in range(2):  # the second time with whatever is cached
            found = answers(client, prompts, COUNT)
            assert [answer[: len(clear)] for answer, clear in zip(found, expected)] == expected
    finally:
        client.close()


def test_a_hit_reads_what_a_miss_wrote(tiny_llama, prompts, kind) -> None:
    client = start(tiny_llama, options(kind))
    try:
        [miss], [hit] = (run(client, [prompts[7]], greedy(COUNT, logprobs=2)) for _ in range(2))
        assert (miss[0].cached_tokens, hit[0].cached_tokens) == (0, 80)  # of 90 tokens, in pages of 16
        [clear] = clear_answers([miss], KINDS[kind])
        assert clear
        assert tokens([hit])[0][: len(clear)] == clear
        for first, second, _ in zip(miss, hit, clear):
            assert second.logprobs[0].logprob == pytest.approx(first.logprobs[0].logprob, abs=KINDS[kind])
    finally:
        client.close()


@pytest.fixture(scope="module")
def of_all_kinds(tiny_llama, prompts):
    """What greedy answers are with each kind of cache."""
    found = {}
    for kind in ("auto", "bf16", "fp8", "int8", "int4"):
        client = start(tiny_llama, options(kind))
        try:
            found[kind] = run(client, prompts, greedy(COUNT, logprobs=2))
        finally:
            client.close()
    return found


def test_rounding_shows_and_is_small(of_all_kinds) -> None:
    first = {kind: [one[0].logprobs[0].logprob for one in outputs] for kind, outputs in of_all_kinds.items()}
    errors = {kind: max(abs(a - b) for a, b in zip(values, first["auto"])) for kind, values in first.items()}
    # 8 bits of mantissa against 4: sixteen times the error; 255 steps against 15: seventeen times.
    assert 0 < errors["bf16"] < errors["fp8"] < 0.5
    assert 0 < errors["int8"] < errors["int4"] < 0.6
    assert errors["int8"] < errors["fp8"]


def test_int8_answers_as_float32_where_that_is_clear(of_all_kinds) -> None:
    clear = clear_answers(of_all_kinds["auto"], 0.15)
    assert sum(map(len, clear)) > 50
    found = tokens(of_all_kinds["int8"])
    assert [answer[: len(part)] for answer, part in zip(found, clear)] == clear


@pytest.mark.parametrize(
    ("kind", "name", "size"),  # of one key or value: 16 numbers, with a scale and an offset of two bytes each
    [("auto", "float32", 64), ("bf16", "bfloat16", 32), ("fp8", "fp8", 16), ("int8", "int8", 20), ("int4", "int4", 12)],
)
def test_a_page_is_as_small_as_its_numbers(tiny_llama, kind: str, name: str, size: int) -> None:
    client = start(tiny_llama, options(kind), process=kind == "int4")
    try:
        assert client.info.kv_dtype == name
        assert client.info.page_bytes == 3 * 16 * 2 * 2 * size  # layers, tokens, heads, keys and values
    finally:
        client.close()


def test_memory_becomes_as_many_more_pages(tmp_path_factory) -> None:
    folder = make_tiny_checkpoint(tmp_path_factory.mktemp("wide"), "llama", head_dim=128)
    budget = Budget(total=1 << 30, available=1 << 30, weights=1 << 28, step_peak=1 << 20, fraction=0.9)
    pages = {}
    for kind in ("bf16", "int8", "int4"):
        client = start(folder, options(kind))
        size = client.info.page_bytes
        client.close()
        pages[kind] = kv_pages(
            budget, page_bytes=size, page_size=16, max_total_tokens=None, useful_tokens=1 << 30, least=512
        )
    assert pages["int8"] >= 1.9 * pages["bf16"]
    assert pages["int4"] >= 3.6 * pages["bf16"]
