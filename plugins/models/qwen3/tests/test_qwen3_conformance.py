"""Qwen3 passes the model kit, with tied and untied heads."""

from __future__ import annotations

from pathlib import Path

import pytest

from pymllm.testing import ModelConformance, make_tiny_checkpoint
from pymllm.testing.harness import MakeAttention, attention_plugin
from pymllm_model_qwen3.model import Qwen3Model


class Qwen3Kit(ModelConformance):
    @pytest.fixture
    def make_attention(self) -> MakeAttention:
        return attention_plugin("torch")

    @pytest.fixture
    def factory(self) -> type[Qwen3Model]:
        return Qwen3Model


class TestQwen3(Qwen3Kit):
    @pytest.fixture
    def checkpoint(self, tmp_path: Path) -> Path:
        return make_tiny_checkpoint(tmp_path / "qwen3", "qwen3")


class TestQwen3TiedWithBiasesAndWideHeads(Qwen3Kit):
    """Heads wider than hidden size / heads, as in Qwen3-0.6B."""

    @pytest.fixture
    def checkpoint(self, tmp_path: Path) -> Path:
        return make_tiny_checkpoint(
            tmp_path / "qwen3", "qwen3", tie_word_embeddings=True, attention_bias=True, head_dim=32
        )
