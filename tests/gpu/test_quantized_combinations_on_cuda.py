"""Quantized weights over a quantized cache on a CUDA device, with graphs: hits, chunks and preemption change no answer.

Weights are quantized while they load; activations are bfloat16, as the kernels of both plugins take them. Steps with
other rows run other kernels, whose results differ in bfloat16's last bits: log-probabilities of the first token, which
is read from the cache that the prompt left, are compared, not whole answers.
"""

from __future__ import annotations

import random
from importlib.util import find_spec
from typing import Any

import pytest

from engines import greedy, run, start, tokens
from pymllm.engine.messages import TokenOutput
from pymllm.testing.tiny import make_tiny_checkpoint

pytestmark = pytest.mark.gpu

COUNT = 12
WEIGHTS = {
    "w8a8": {"quant.plugin": "w8a8-cutlass", "quant.online": True, "quant.kernels": "triton"},
    "w4a16": {"quant.plugin": "w4a16", "quant.online": True, "quant.group_size": 32},
}
NEAR = {"auto": 0.15, "int8": 0.15, "int4": 0.3}
"""Of log-probability, by what the cache holds: as between a hit and a miss in test_kv_dtypes_on_cuda.py."""
VARIANTS: dict[str, dict[str, Any]] = {
    "radix": {},
    "radix, budget 16": {"engine.max_batch_tokens": 16},
    "chunk, small": {"engine.max_total_tokens": 128, "cache.page_size": 4, "cache.plugin": "chunk"},
}


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    rng = random.Random(5)
    shared = [rng.randrange(250) for _ in range(60)]
    alone = [[rng.randrange(250) for _ in range(n)] for n in (17, 33, 90)]
    return alone + [shared[:cut] + [rng.randrange(250) for _ in range(9)] for cut in (20, 48)]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory):
    return make_tiny_checkpoint(
        tmp_path_factory.mktemp("qwen3"), "qwen3", head_dim=64, hidden_size=128, intermediate_size=256
    )


@pytest.fixture(scope="module", params=["triton", "flashinfer"])
def attention(request: pytest.FixtureRequest) -> str:
    if request.param == "flashinfer" and find_spec("flashinfer") is None:
        pytest.skip("needs flashinfer-python")
    return request.param


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("kind", NEAR)
def test_hits_chunks_and_preemption_change_no_answer(checkpoint, prompts, attention, weights: str, kind: str) -> None:
    options = {"engine.device": "cuda", "model.dtype": "bfloat16", **WEIGHTS[weights]}
    options |= {"engine.max_running_requests": 8, "engine.max_batch_tokens": 128}  # few graphs to capture
    options |= {"attention.plugin": attention, "attention.kv_dtype": kind}
    [expected], _ = served(checkpoint, {**options, "cache.plugin": "chunk", "engine.cuda_graphs": False}, prompts, 1)
    for name, more in VARIANTS.items():
        rounds, stats = served(checkpoint, {**options, **more}, prompts, 2)
        assert (stats.total_cached_tokens > 0) == name.startswith("radix"), name
        assert (stats.total_preemptions > 0) == name.endswith("small"), name
        for outputs in rounds:
            assert [len(answer) for answer in tokens(outputs)] == [COUNT] * len(prompts)
            assert firsts(outputs, expected) == pytest.approx(firsts(expected, expected), abs=NEAR[kind]), name


def served(checkpoint, options: dict[str, Any], prompts, rounds: int) -> tuple[list[list[list[TokenOutput]]], Any]:
    """Answers of an engine, so many times over, and its statistics."""
    client = start(checkpoint, options)
    try:
        found = [run(client, prompts, greedy(COUNT, logprobs=20)) for _ in range(rounds)]
        return found, client.stats()
    finally:
        client.close()


def firsts(outputs: list[list[TokenOutput]], expected: list[list[TokenOutput]]) -> list[float]:
    """Log-probability of each answer's first token: of the one that is expected."""
    return [one[0].logprobs[0].top[reference[0].token_ids[0]] for one, reference in zip(outputs, expected, strict=True)]
