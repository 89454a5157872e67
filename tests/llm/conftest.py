"""One tiny checkpoint, one loaded LLM, and transformers as the reference."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from pymllm import LLM
from pymllm.testing.tiny import make_tiny_checkpoint

SMALL = {"engine.max_total_tokens": 8192, "model.dtype": "float32"}
"""Overrides that keep a test's engine small."""


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_checkpoint(tmp_path_factory.mktemp("llm") / "tiny-qwen3", "qwen3", seed=1)


@pytest.fixture(scope="session")
def small() -> dict[str, object]:
    return dict(SMALL)


@pytest.fixture(scope="session")
def llm(folder: Path) -> Iterator[LLM]:
    with LLM(folder, SMALL, progress=False) as loaded:
        yield loaded


@pytest.fixture(scope="session")
def tokenizer(folder: Path):
    return AutoTokenizer.from_pretrained(folder)


@pytest.fixture(scope="session")
def model(folder: Path):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


@pytest.fixture(scope="session")
def greedy(model) -> Callable[..., list[int]]:
    """transformers' greedy continuation of token ids, end token included."""

    def generate(ids: list[int], max_new_tokens: int, eos: bool = True) -> list[int]:
        options = {} if eos else {"eos_token_id": None}
        with torch.no_grad():
            found = model.generate(
                torch.tensor([ids]),
                attention_mask=torch.ones(1, len(ids), dtype=torch.long),
                max_new_tokens=max_new_tokens,
                do_sample=False,
                **options,
            )
        return found[0, len(ids) :].tolist()

    return generate
