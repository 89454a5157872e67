"""The invariants of the engine on a CUDA device: greedy answers are those of transformers on a CPU."""

from __future__ import annotations

import random

import pytest
import torch

from engines import answers, reference_answers, start
from pymllm.testing.tiny import make_tiny_checkpoint

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

COUNT = 12
VARIANTS = {
    "default": {},
    "no reuse": {"cache.plugin": "chunk"},
    "page size 1": {"cache.page_size": 1},
    "budget 5": {"engine.max_batch_tokens": 5},
    "preempting": {"engine.max_total_tokens": 128, "cache.page_size": 4, "cache.plugin": "chunk"},
    "no overlap": {"engine.overlap": False},
    "no graphs": {"engine.cuda_graphs": False},
    "neither": {"engine.overlap": False, "engine.cuda_graphs": False},
    "torch attention": {"attention.plugin": "torch"},
    "triton attention": {"attention.plugin": "triton"},
}


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    rng = random.Random(7)
    shared = [rng.randrange(250) for _ in range(60)]
    alone = [[rng.randrange(250) for _ in range(n)] for n in (1, 2, 15, 16, 17, 33, 64, 90)]
    return alone + [shared[:cut] + [rng.randrange(250) for _ in range(9)] for cut in (20, 32, 48, 60)]


@pytest.fixture(scope="module", params=["llama", "qwen2", "qwen3"])
def checkpoint(request, tmp_path_factory):
    return make_tiny_checkpoint(tmp_path_factory.mktemp(request.param), request.param)


@pytest.fixture(scope="module")
def expected(checkpoint, prompts):
    return reference_answers(checkpoint, prompts, COUNT)


@pytest.mark.parametrize("overrides", VARIANTS.values(), ids=VARIANTS.keys())
def test_answers_in_float32(checkpoint, prompts, expected, overrides) -> None:
    client = start(checkpoint, {"engine.device": "cuda", **overrides})
    try:
        assert answers(client, prompts, COUNT) == expected
        assert answers(client, prompts, COUNT) == expected
    finally:
        client.close()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_agrees_with_itself(checkpoint, prompts, dtype) -> None:
    client = start(checkpoint, {"engine.device": "cuda", "model.dtype": dtype, "cache.plugin": "chunk"})
    try:
        first = answers(client, prompts, COUNT)
        assert [len(answer) for answer in first] == [COUNT] * len(prompts)
        assert answers(client, prompts, COUNT) == first
    finally:
        client.close()
