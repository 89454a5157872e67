"""``bench one-batch`` runs the engine's model, counts what it says it counts, and refuses what does not fit."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

from engines import reference_answers
from pymllm.bench import ceilings as ceilings_module
from pymllm.bench.ceilings import Ceilings, best_seconds, measure_ceilings
from pymllm.bench.demand import decode_bytes, prefill_flops, streamed_weight_bytes
from pymllm.bench.lockstep import Lockstep
from pymllm.bench.one_batch import OneBatchOptions, OneBatchResult, measure_one_batch
from pymllm.compose import compose
from pymllm.engine.assemble import Assembled, assemble_parts
from pymllm.engine.plan import ItemResult, StepPlan
from pymllm.errors import ConfigError
from pymllm.sampling import SamplingParams
from pymllm.testing.tiny import make_tiny_checkpoint

CEILINGS = Ceilings(bandwidth=1e9, compute=1e12, dtype="float32")

GREEDY = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True).with_defaults({})


def parts_of(folder: Path, **settings: Any) -> Assembled:
    limits = {"engine.max_total_tokens": 512, "engine.max_running_requests": 4, "log.level": "warning"}
    base = {"model.path": str(folder), "model.dtype": "float32", "engine.device": "cpu", **limits}
    return assemble_parts(compose(None, {**base, **settings}), progress=False)


@pytest.fixture(scope="module")
def parts(checkpoint: Path) -> Assembled:
    return parts_of(checkpoint)


def measured(parts: Assembled, **changes: Any) -> list[OneBatchResult]:
    options = {"batch_size": [2], "input_len": [20], "output_len": [4], "temperature": 0.0, "seed": 0, "repeats": 2}
    return list(measure_one_batch(parts, CEILINGS, OneBatchOptions(**{**options, **changes})))


@pytest.mark.parametrize("most", [512, 16, 7])
def test_its_tokens_are_those_of_transformers(checkpoint: Path, most: int) -> None:
    rng = random.Random(1)
    prompts = [[rng.randrange(250) for _ in range(30)] for _ in range(3)]
    batch = Lockstep(parts_of(checkpoint, **{"engine.max_batch_tokens": most}), prompts, 6, GREEDY, seed=0)
    assert len(list(batch.prefill())) == -(-90 // most)
    assert len(list(batch.decode())) == 5
    assert [one.tokens[30:] for one in batch.requests] == reference_answers(checkpoint, prompts, 6)


def test_steps_overlap_where_the_engine_lets_them(parts: Assembled) -> None:
    events: list[str] = []

    class Noting:
        """The real runner; notes when a step is launched and when it is waited for."""

        def launch(self, plan: StepPlan) -> Callable[[], list[ItemResult]]:
            position = plan.items[0].start
            events.append(f"launch {position}")
            wait = parts.runner.launch(plan)

            def waiting() -> list[ItemResult]:
                events.append(f"wait {position}")
                return wait()

            return waiting

    for overlap in (False, True):
        batch = Lockstep(replace(parts, runner=Noting(), overlap=overlap), [[1, 2, 3]], 4, GREEDY, seed=0)
        list(batch.prefill())
        events.clear()
        list(batch.decode())
        serial = ["launch 3", "wait 3", "launch 4", "wait 4", "launch 5", "wait 5"]
        assert events == (["launch 3", "launch 4", "wait 3", "launch 5", "wait 4", "wait 5"] if overlap else serial)


def test_every_combination_and_its_rates(parts: Assembled) -> None:
    results = measured(parts, batch_size=[1, 3], input_len=[5, 40], output_len=[1, 4])
    assert [(r.batch_size, r.input_len, r.output_len) for r in results] == [
        (b, i, o) for b in (1, 3) for i in (5, 40) for o in (1, 4)
    ]
    for result in results:
        batch, prompt, answer = result.batch_size, result.input_len, result.output_len
        assert result.prefill_throughput * result.prefill_latency == pytest.approx(batch * prompt)
        assert result.overall_throughput * result.total_latency == pytest.approx(batch * (prompt + answer))
        assert result.memory.kv == batch * (prompt + answer - 1) * 2 * 3 * 2 * 16 * 4
        if answer == 1:
            assert result.total_latency == result.prefill_latency
            decode = (result.median_decode_latency, result.median_decode_throughput, result.decode_steps)
            assert (*decode, result.bandwidth_share) == (None,) * 4
        else:
            assert result.median_decode_latency is not None
            assert result.median_decode_throughput == pytest.approx(batch / result.median_decode_latency)
            assert result.decode_steps is not None
            assert result.decode_steps.count == 2 * (answer - 1)
            assert result.total_latency > result.prefill_latency


def test_the_first_token_is_no_decode_step(parts: Assembled) -> None:
    """Whatever the prefill takes, it is not in the decode latency, and both are in the total."""
    (result,) = measured(parts, batch_size=[1], output_len=[5], repeats=1)
    assert result.decode_steps is not None
    assert result.prefill_latency + 4 * result.decode_steps.mean == pytest.approx(result.total_latency)


@pytest.mark.parametrize("tied", [False, True])
def test_bytes_of_a_decode_step_are_those_of_the_checkpoint(tmp_path: Path, tied: bool) -> None:
    folder = make_tiny_checkpoint(tmp_path, "qwen3", tie_word_embeddings=tied)
    model = parts_of(folder)
    with safe_open(folder / "model.safetensors", "pt") as file:
        sizes = {name: 4 * file.get_tensor(name).numel() for name in file.keys()}  # noqa: SIM118
    assert ("lm_head.weight" in sizes) is not tied
    streamed = sum(sizes.values()) - (0 if tied else sizes["model.embed_tokens.weight"])
    assert streamed_weight_bytes(model.model) == streamed
    assert decode_bytes(model, 3, 10.5) == streamed + 3 * 10.5 * (2 * 3 * 2 * 16 * 4)


@pytest.mark.parametrize("tied", [False, True])
def test_operations_of_a_prefill_by_hand(tmp_path: Path, tied: bool) -> None:
    model = parts_of(make_tiny_checkpoint(tmp_path, "llama", tie_word_embeddings=tied))
    layer = 64 * (64 + 32 + 32) + 64 * 64 + 3 * 64 * 128  # q, k, v; o; gate, up, down
    # One prompt of 3 tokens: every layer for each token, the head once, attention over 1 + 2 + 3 pairs.
    products = 2 * 3 * (3 * layer) + 2 * 64 * 288
    attention = 3 * (4 * 4 * 16) * 6
    assert prefill_flops(model, 1, 3) == products + attention
    assert prefill_flops(model, 5, 3) == 5 * (products + attention)


def test_shares_are_what_is_needed_over_what_the_device_can(parts: Assembled) -> None:
    (result,) = measured(parts)
    assert result.median_decode_latency is not None
    needed = decode_bytes(parts, 2, 22)  # steps at 21, 22 and 23 tokens
    assert result.bandwidth_share == pytest.approx(needed / result.median_decode_latency / 1e9)
    assert result.compute_share == pytest.approx(prefill_flops(parts, 2, 20) / result.prefill_latency / 1e12)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch_size": [1, 5]}, r"set it to at least 5"),
        ({"input_len": [600]}, r"600|604"),
        ({"batch_size": [4], "input_len": [200]}, r"take 832 tokens of KV, but the pool holds 512"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_runs(
    parts: Assembled, changes: dict[str, Any], message: str
) -> None:
    class Untouched:
        def launch(self, plan: StepPlan) -> Callable[[], list[ItemResult]]:
            raise AssertionError("a step ran")

    with pytest.raises(ConfigError, match=message):
        measured(replace(parts, runner=Untouched()), **changes)


@pytest.mark.usefixtures("small_ceilings")
def test_ceilings_are_rates() -> None:
    """Against the same work timed by hand; wide bounds, since others may use the cores."""
    found = measure_ceilings(torch.device("cpu"), torch.float32)
    source, target = torch.ones(1 << 22), torch.empty(1 << 22)
    copy = 2 * (1 << 24) / best_seconds(lambda: target.copy_(source), torch.device("cpu"))
    assert copy / 10 < found.bandwidth < 10 * copy
    matrix = torch.randn(256, 256)
    product = 2 * 256**3 / best_seconds(lambda: matrix @ matrix, torch.device("cpu"))
    assert product / 10 < found.compute < 20 * product
    assert found.dtype == "float32"


def test_the_best_of_the_calls_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    seconds = iter([9.0, 1.0, 3.0, 0.5, 2.0, 4.0, 1.5])
    monkeypatch.setattr(ceilings_module.time, "perf_counter", lambda: now[0])

    def work() -> None:
        now[0] += next(seconds)

    assert best_seconds(work, torch.device("cpu")) == 0.5
