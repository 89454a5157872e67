"""Llama and Qwen2 pass the model kit: tied and untied heads, biases, few and many key/value heads."""

from __future__ import annotations

from pathlib import Path

import pytest

from pymllm.testing import ModelConformance, make_tiny_checkpoint
from pymllm.testing.harness import MakeAttention, attention_plugin
from pymllm_model_llama.model import LlamaModel


class LlamaKit(ModelConformance):
    @pytest.fixture
    def make_attention(self) -> MakeAttention:
        return attention_plugin("torch")

    @pytest.fixture
    def factory(self) -> type[LlamaModel]:
        return LlamaModel


class TestLlama(LlamaKit):
    @pytest.fixture
    def checkpoint(self, tmp_path: Path) -> Path:
        return make_tiny_checkpoint(tmp_path / "llama", "llama")


class TestLlamaWithEveryBiasAndATiedHead(LlamaKit):
    @pytest.fixture
    def checkpoint(self, tmp_path: Path) -> Path:
        return make_tiny_checkpoint(
            tmp_path / "llama",
            "llama",
            attention_bias=True,
            mlp_bias=True,
            tie_word_embeddings=True,
            num_key_value_heads=4,
        )


class TestQwen2(LlamaKit):
    @pytest.fixture
    def checkpoint(self, tmp_path: Path) -> Path:
        return make_tiny_checkpoint(tmp_path / "qwen2", "qwen2", num_key_value_heads=1)


class TestQwen2Tied(LlamaKit):
    @pytest.fixture
    def checkpoint(self, tmp_path: Path) -> Path:
        return make_tiny_checkpoint(tmp_path / "qwen2", "qwen2", tie_word_embeddings=True)
