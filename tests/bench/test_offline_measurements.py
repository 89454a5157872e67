from __future__ import annotations

import pytest

from pymllm import LLM
from pymllm.bench.latency import LatencyOptions, LatencyResult, measure_latency
from pymllm.bench.throughput import ThroughputOptions, measure_throughput
from pymllm.bench.workload import Lengths
from pymllm.errors import ConfigError, RequestError


def throughput_options(**changes: object) -> ThroughputOptions:
    options = {
        "num_prompts": 12,
        "input_len": Lengths(33, 40),
        "output_len": Lengths(2, 9),
        "seed": 0,
        "temperature": 0.6,
        "repeats": 3,
    }
    return ThroughputOptions(**{**options, **changes})  # type: ignore[arg-type]


def latency_results(llm: LLM, **changes: object) -> list[LatencyResult]:
    options = {
        "batch_size": [3],
        "input_len": [40],
        "output_len": [4],
        "shared_prefix": 0,
        "seed": 0,
        "temperature": 0.0,
        "repeats": 2,
    }
    return list(measure_latency(llm, LatencyOptions(**{**options, **changes})))  # type: ignore[arg-type]


def test_throughput_counts_the_tokens_that_were_computed(llm: LLM) -> None:
    before = llm.frontend.client.stats()
    lines: list[str] = []
    result = measure_throughput(llm, throughput_options(), say=lines.append)
    after = llm.frontend.client.stats()
    warm_up = after.total_generated_tokens - before.total_generated_tokens - 3 * result.output_tokens
    assert 0 < warm_up <= 8 * 9
    assert len(lines) == len(result.output_tok_s.values) == 3
    for rate, seconds in zip(result.output_tok_s.values, result.elapsed_s.values):
        assert rate * seconds == pytest.approx(result.output_tokens)
    assert result.output_tok_s.worst <= result.output_tok_s.median <= result.output_tok_s.best


def test_repeats_of_the_same_prompts_find_nothing_in_the_cache(llm: LLM) -> None:
    assert measure_throughput(llm, throughput_options()).cached_tokens == [0, 0, 0]


def test_a_request_that_does_not_fit_is_refused_before_the_run(llm: LLM) -> None:
    steps = llm.frontend.client.stats().total_steps
    with pytest.raises(RequestError, match="context"):
        measure_throughput(llm, throughput_options(input_len=Lengths(4000, 4000)))
    assert llm.frontend.client.stats().total_steps == steps


def test_every_combination_is_measured(llm: LLM) -> None:
    results = latency_results(llm, batch_size=[1, 2], input_len=[20, 40], output_len=[1, 5])
    settings = [(r.batch_size, r.input_len, r.output_len) for r in results]
    assert settings == [(b, i, o) for b in (1, 2) for i in (20, 40) for o in (1, 5)]
    for result in results:
        assert (result.tpot_s is None) == (result.output_len == 1)
        for first, whole in zip(result.ttft_s.values, result.e2e_s.values):
            assert 0 < first <= whole


def test_the_parts_of_a_lone_answer_add_up(llm: LLM) -> None:
    (result,) = latency_results(llm, batch_size=[1], output_len=[6], repeats=3)
    assert result.tpot_s is not None
    for first, each, whole in zip(result.ttft_s.values, result.tpot_s.values, result.e2e_s.values):
        assert first + 5 * each == pytest.approx(whole)


def test_only_a_shared_prefix_comes_from_the_cache(llm: LLM) -> None:
    (alone,) = latency_results(llm)
    assert alone.cached_tokens == [0, 0]
    (shared,) = latency_results(llm, shared_prefix=35)
    assert shared.cached_tokens == [3 * 32, 3 * 32]  # whole pages of 16 tokens


def test_a_shared_prefix_must_leave_room(llm: LLM) -> None:
    with pytest.raises(ConfigError, match="--shared-prefix 40"):
        latency_results(llm, shared_prefix=40)
