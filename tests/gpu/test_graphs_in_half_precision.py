"""In bfloat16 a step that is replayed from a CUDA graph computes what the same step launched anew does.

FlashInfer serves half precision alone, so the float32 comparison of test_engine_on_cuda.py passes it by. Where both
ways run the same kernels on the same shapes, results are equal bit for bit: prompts of 128 tokens together and batches
of 8 are sizes that are captured, so nothing is padded, and contexts below 128 tokens are cut into one part however
a kernel splits its work. Elsewhere sums are taken in another order, and bfloat16's error is the bound.
"""

from __future__ import annotations

import random
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, Qwen3Config

from engines import start
from logits import Answer, Difference, References, answer, between, differences, save

pytestmark = pytest.mark.gpu

COUNT = 24
RATIO = 1.5
CONFIG = Qwen3Config(
    hidden_size=1024, intermediate_size=3072, num_hidden_layers=3, num_attention_heads=16, num_key_value_heads=8,
    head_dim=128, vocab_size=20000, max_position_embeddings=2048, rope_theta=1e6, tie_word_embeddings=True,
)  # fmt: skip
BACKENDS = {
    "triton": {"attention.plugin": "triton"},
    "flashinfer": {"attention.plugin": "flashinfer"},
    "flashinfer, CUDA cores": {"attention.plugin": "flashinfer", "attention.decode": "cuda_cores"},
    "flashinfer, tensor cores": {"attention.plugin": "flashinfer", "attention.decode": "tensor_cores"},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(CONFIG, tmp_path_factory.mktemp("qwen3"), seed=4)


@pytest.fixture(params=BACKENDS.values(), ids=BACKENDS.keys())
def backend(request: pytest.FixtureRequest) -> dict[str, str]:
    name = request.param["attention.plugin"]
    try:
        distribution(f"pymllm-attention-{name}")
    except PackageNotFoundError:
        pytest.skip(f"pymllm-attention-{name} is not installed")
    if name == "flashinfer" and find_spec("flashinfer") is None:
        pytest.skip("flashinfer-python is not installed")
    options: dict[str, str] = request.param
    return options


def both_ways(folder: Path, backend: dict[str, str], lengths: list[int], **more: Any) -> list[list[Answer]]:
    """Answers with graphs and without."""
    rng = random.Random(len(lengths))
    prompts = [[rng.randrange(CONFIG.vocab_size) for _ in range(length)] for length in lengths]
    found = []
    for graphs in (True, False):
        options = {
            "model.dtype": "bfloat16", "model.max_context": 1024, "engine.device": "cuda", "engine.overlap": False,
            "engine.cuda_graphs": graphs, "engine.max_running_requests": 8, "engine.max_batch_tokens": 256,
            "engine.max_total_tokens": 8192, **backend,
        }  # fmt: skip
        client = start(folder, options)
        try:
            found.append(answer(client, prompts, COUNT))
        finally:
            client.close()
    return found


def test_the_same_kernels_give_the_same_bits(folder: Path, backend: dict[str, str]) -> None:
    replayed, launched = both_ways(folder, backend, [16] * 8)
    assert [one.tokens for one in replayed] == [one.tokens for one in launched]
    different = [
        (number, place)
        for number, (a, b) in enumerate(zip(replayed, launched))
        for place, (x, y) in enumerate(zip(a.scores, b.scores))
        if (x.logprob, x.top) != (y.logprob, y.top)
    ]
    assert not different, f"(request, place) that differ, places below 15 in the prompt: {different[:20]}"


def test_other_shapes_differ_by_no_more_than_bfloat16_errs(folder: Path, backend: dict[str, str]) -> None:
    """Five requests are padded to eight; contexts are long enough to be split, and a prompt takes several steps."""
    replayed, launched = both_ways(folder, backend, [300, 5, 700, 90, 33])
    references = References(AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32), "cuda")
    parts = [part for one in replayed for part in differences(references, one)]
    assert between(replayed, launched) < 2**0.5 * RATIO * sum(parts, Difference()).usual_rms
