"""Greedy answers are those of transformers, whatever the cache, the chunks, the batch or the process."""

from __future__ import annotations

import pytest

from engines import answers, greedy, reference_answers, run, start, tokens
from pymllm.testing.tiny import make_tiny_checkpoint

COUNT = 12


@pytest.fixture(scope="module")
def expected(tiny_llama, prompts):
    return reference_answers(tiny_llama, prompts, COUNT)


@pytest.fixture
def engine(tiny_llama, request):
    client = start(tiny_llama, getattr(request, "param", None))
    yield client
    client.close()


VARIANTS = {
    "default": {},
    "no reuse": {"cache.plugin": "chunk"},
    "page size 1": {"cache.page_size": 1},
    "page size 7": {"cache.page_size": 7},
    "budget 1": {"engine.max_batch_tokens": 1},
    "budget 5": {"engine.max_batch_tokens": 5},
    "whole prefill": {"engine.max_batch_tokens": 512},
    "one at a time": {"engine.max_running_requests": 1},
    "no reuse, budget 3": {"cache.plugin": "chunk", "engine.max_batch_tokens": 3},
    "preempting": {"engine.max_total_tokens": 128, "cache.page_size": 4, "cache.plugin": "chunk"},
    "evicting": {"engine.max_total_tokens": 128, "cache.page_size": 4},
    "a stranger's policy": {"cache.plugin": "lfu", "engine.max_total_tokens": 160, "cache.page_size": 8},
}


@pytest.mark.parametrize("engine", VARIANTS.values(), ids=VARIANTS.keys(), indirect=True)
def test_answers_are_those_of_transformers(engine, prompts, expected) -> None:
    assert answers(engine, prompts, COUNT) == expected
    assert answers(engine, prompts, COUNT) == expected  # now with whatever is cached


@pytest.mark.parametrize("engine", [VARIANTS["preempting"]], indirect=True)
def test_preemption_really_happens(engine, prompts) -> None:
    answers(engine, prompts, 30)
    assert engine.stats().total_preemptions > 0


def test_alone_as_in_a_batch(engine, prompts, expected) -> None:
    assert [answers(engine, [prompt], COUNT)[0] for prompt in prompts] == expected


def test_in_a_process_as_in_a_thread(tiny_llama, prompts, expected) -> None:
    client = start(tiny_llama, process=True)
    try:
        assert answers(client, prompts, COUNT) == expected
        assert client.stats().total_generated_tokens == COUNT * len(prompts)
    finally:
        client.close()
    assert not client.alive


@pytest.mark.parametrize("architecture", ["qwen2", "qwen3"])
def test_other_architectures(architecture, prompts, tmp_path) -> None:
    folder = make_tiny_checkpoint(tmp_path, architecture)
    client = start(folder)
    try:
        assert answers(client, prompts, COUNT) == reference_answers(folder, prompts, COUNT)
    finally:
        client.close()


def test_the_cache_is_hit_in_the_next_turn(engine, prompts) -> None:
    prompt = prompts[7]  # 90 tokens
    [first] = answers(engine, [prompt], 20)
    [outputs] = run(engine, [[*prompt, *first, 5, 6]], greedy(4))
    # 110 tokens were answered or asked; the last sampled one has no KV, so 109 do: 6 whole pages of 16
    assert outputs[0].cached_tokens == 96


def test_reset_drops_the_cache(engine, prompts) -> None:
    answers(engine, prompts[7:8], 4)
    assert engine.reset_cache() == 5  # 90 prompt tokens + 3 of the 4 answered: 93 have KV, 5 whole pages
    [outputs] = run(engine, prompts[7:8], greedy(1))
    assert outputs[0].cached_tokens == 0


@pytest.mark.parametrize("cache", ["radix", "chunk"])
def test_seeded_draws_depend_on_seed_and_position_alone(tiny_llama, prompts, cache) -> None:
    from pymllm.sampling import SamplingParams

    drawn = SamplingParams(temperature=1.3, top_p=0.95, seed=11, max_tokens=COUNT, ignore_eos=True).with_defaults({})
    client = start(tiny_llama, {"cache.plugin": cache})
    try:
        alone = [tokens(run(client, [prompt], drawn))[0] for prompt in prompts]
        assert tokens(run(client, prompts, drawn)) == alone
        assert tokens(run(client, prompts[::-1], drawn)) == alone[::-1]
    finally:
        client.close()


def test_unseeded_requests_differ_and_engine_seed_repeats_them(tiny_llama, prompts) -> None:
    from pymllm.sampling import SamplingParams

    free = SamplingParams(temperature=1.5, max_tokens=COUNT, ignore_eos=True).with_defaults({})

    def draws() -> list[list[int]]:
        client = start(tiny_llama, {"engine.seed": 3})
        try:
            return tokens(run(client, [prompts[3]] * 4, free))
        finally:
            client.close()

    first = draws()
    assert len({tuple(one) for one in first}) == 4
    assert draws() == first
