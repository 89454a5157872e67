"""On a CUDA device in bfloat16, logits are as near to float32 as bfloat16 lets them be: with every attention backend,
over prompts in chunks and decodes in graphs, at the batch sizes that different kernels serve.

How near that is, transformers' own bfloat16 shows, on the same device with the same weights and tokens: it rounds at
the same places, so pymllm's error (relative, root mean square) may be half as large again and no more. A backend or
kernel that loses more is wrong somewhere, or rounds where it need not.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, Qwen3Config

from engines import start
from logits import Answer, Difference, References, answer, between, differences, save
from pymllm.checkpoint import open_checkpoint
from pymllm.config import ModelConfig
from pymllm.engine.client import EngineClient
from pymllm.frontend.tokenizer import load_tokenizer

pytestmark = pytest.mark.gpu

DEVICE = "cuda"
SMOLLM2 = "PYMLLM_TEST_SMOLLM2"
COUNT = 24
RATIO = 1.5
MOST = 0.06
"""Of the logits' spread. With these weights transformers' bfloat16 comes to 0.02 to 0.04 on a CPU."""

BACKENDS = ("flashinfer", "triton", "torch")

QWEN3 = Qwen3Config(
    hidden_size=1024, intermediate_size=3072, num_hidden_layers=4, num_attention_heads=16, num_key_value_heads=8,
    head_dim=128, vocab_size=151936, max_position_embeddings=4096, rope_theta=1e6, rms_norm_eps=1e-6,
    tie_word_embeddings=True,
)  # fmt: skip
SMOLLM2_135M = LlamaConfig(
    hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9, num_key_value_heads=3,
    head_dim=64, vocab_size=49152, max_position_embeddings=8192, rope_theta=1e5, rms_norm_eps=1e-5,
    tie_word_embeddings=True,
)  # fmt: skip
LENGTHS = {
    1: [300, 5, 90, 17, 150, 33, 64, 2],
    8: [1, 17, 64, 130, 255, 300, 511, 700],
    40: [5 + 3 * i for i in range(40)],
}
"""Prompts, by how many are answered at a time: 1, 8 and 40 rows are different kernels. 700 tokens are more than a step
computes."""

Measured = dict[int, list[Answer]]


@dataclass(frozen=True)
class Model:
    """path: of a checkpoint. prompts: for each batch size."""

    path: Path
    references: References
    prompts: Mapping[int, Sequence[list[int]]]


def random_prompts(vocab_size: int) -> dict[int, list[list[int]]]:
    rng = random.Random(5)
    return {size: [[rng.randrange(vocab_size) for _ in range(n)] for n in each] for size, each in LENGTHS.items()}


def random_model(config: Any, folder: Path) -> Model:
    save(config, folder, seed=3)
    reference = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return Model(folder, References(reference, DEVICE), random_prompts(config.vocab_size))


def real_smollm2() -> Model:
    """The weights of a GGUF file, and English to read."""
    path = os.environ.get(SMOLLM2)
    if not path:
        pytest.skip(f"{SMOLLM2} names no GGUF file of SmolLM2")
    checkpoint = open_checkpoint(ModelConfig(path=path))
    tokenizer = load_tokenizer(checkpoint, ModelConfig(path=path))
    assert tokenizer is not None
    reference = LlamaForCausalLM(LlamaConfig(**checkpoint.config))
    missing, unknown = reference.load_state_dict(dict(checkpoint.tensors()), strict=False)
    assert not unknown
    assert missing in ([], ["lm_head.weight"])
    reference.tie_weights()
    text = tokenizer((Path(__file__).parents[2] / "docs" / "performance.md").read_text())["input_ids"]
    prompts = {size: [text[n : 2 * n] for n in each] for size, each in LENGTHS.items()}
    return Model(Path(path), References(reference, DEVICE), prompts)


@pytest.fixture(scope="module", params=["qwen3", "smollm2", "smollm2 real"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    if request.param == "smollm2 real":
        return real_smollm2()
    config = QWEN3 if request.param == "qwen3" else SMOLLM2_135M
    return random_model(config, tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="module")
def measured(model: Model) -> Callable[[str], Measured]:
    """The answers with an attention backend, computed once."""

    @cache
    def measure(backend: str) -> Measured:
        options = {
            "model.dtype": "bfloat16", "model.max_context": 1024, "engine.device": DEVICE, "attention.plugin": backend,
            "engine.max_running_requests": 40, "engine.max_batch_tokens": 256, "engine.max_total_tokens": 16384,
        }  # fmt: skip
        client = start(model.path, options)
        try:
            return {size: in_batches(client, prompts, size) for size, prompts in model.prompts.items()}
        finally:
            client.close()

    return measure


def in_batches(client: EngineClient, prompts: Sequence[list[int]], size: int) -> list[Answer]:
    parts = [answer(client, prompts[first : first + size], COUNT) for first in range(0, len(prompts), size)]
    return [one for part in parts for one in part]


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    require(request.param)
    return str(request.param)


def require(backend: str) -> None:
    """Skip where a backend is not installed."""
    try:
        distribution(f"pymllm-attention-{backend}")
    except PackageNotFoundError:
        pytest.skip(f"pymllm-attention-{backend} is not installed")
    if backend == "flashinfer" and find_spec("flashinfer") is None:
        pytest.skip("flashinfer-python is not installed")


def test_the_logits_have_something_to_tell(model: Model) -> None:
    """Or else the others would pass whatever is computed."""
    exact, _ = model.references.logits(list(model.prompts[1][0]))
    assert exact.std(-1).min() > 1
    assert len(set(exact.argmax(-1).tolist())) > 0.3 * len(exact)


def test_errors_are_those_of_bfloat16(model: Model, backend: str, measured: Callable[[str], Measured]) -> None:
    worse = []
    for size, answers in measured(backend).items():
        prompt, decoded = Difference(), Difference()
        for one in answers:
            assert len(one.tokens) == one.prompt_length + COUNT
            of_prompt, of_answer = differences(model.references, one)
            prompt, decoded = prompt + of_prompt, decoded + of_answer
        for name, found in (("prompt", prompt), ("answer", decoded)):
            line = f"{size} x {name}: {found.error:.4f}, transformers {found.usual:.4f}"
            print(line)
            if found.error > MOST or found.error > RATIO * found.usual:
                worse.append(line)
    assert not worse


@pytest.mark.parametrize(("one", "other"), [("triton", "torch"), ("flashinfer", "triton")])
def test_backends_agree(model: Model, measured: Callable[[str], Measured], one: str, other: str) -> None:
    """Their errors are independent: they differ by no more than two allowed errors, added in squares."""
    require(one)
    require(other)
    for size, answers in measured(one).items():
        parts = [part for found in answers for part in differences(model.references, found)]
        usual = sum(parts, Difference()).usual_rms
        assert between(answers, measured(other)[size]) < 2**0.5 * RATIO * usual, size
