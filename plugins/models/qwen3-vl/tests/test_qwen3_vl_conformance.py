"""Qwen3-VL passes the kits: as a language model, and as one that sees."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import Qwen3VLForConditionalGeneration

from pymllm.testing import MediaModelConformance, ModelConformance
from pymllm.testing.harness import MakeAttention, attention_plugin
from pymllm.testing.media import Reference
from pymllm_model_qwen3_vl.model import Qwen3VLModel
from pymllm_model_qwen3_vl.processor import Qwen3VLProcessor


class SeeingKit(MediaModelConformance):
    image_placeholder = "<|vision_start|><|image_pad|><|vision_end|>"
    video_placeholder = "<|vision_start|><|video_pad|><|vision_end|>"

    @pytest.fixture
    def factory(self) -> type[Qwen3VLModel]:
        return Qwen3VLModel

    @pytest.fixture
    def make_processor(self) -> type[Qwen3VLProcessor]:
        return Qwen3VLProcessor

    @pytest.fixture
    def make_attention(self) -> MakeAttention:
        return attention_plugin("torch")


class TestVisionHeadsOf64(SeeingKit):
    @pytest.fixture
    def checkpoint(self, tiny: Path) -> Path:
        return tiny

    @pytest.fixture
    def reference(self, transformers64: Reference) -> Reference:
        return transformers64


class TestVisionHeadsOf72AndATiedHead(SeeingKit):
    @pytest.fixture
    def checkpoint(self, tiny72: Path) -> Path:
        return tiny72

    @pytest.fixture
    def reference(self, transformers72: Reference) -> Reference:
        return transformers72


class TestLanguageModel(ModelConformance):
    @pytest.fixture
    def checkpoint(self, tiny: Path) -> Path:
        return tiny

    @pytest.fixture
    def factory(self) -> type[Qwen3VLModel]:
        return Qwen3VLModel

    @pytest.fixture
    def make_attention(self) -> MakeAttention:
        return attention_plugin("torch")

    @pytest.fixture
    def reference(self, checkpoint: Path) -> Callable[[torch.dtype, torch.dtype, list[int]], Tensor]:
        @cache
        def model(stored: torch.dtype, computed: torch.dtype) -> Any:
            loaded: Any = Qwen3VLForConditionalGeneration.from_pretrained(checkpoint, dtype=stored)
            return loaded.to(computed)

        @torch.inference_mode()
        def logits(stored: torch.dtype, computed: torch.dtype, tokens: list[int]) -> Tensor:
            return model(stored, computed)(torch.tensor([tokens])).logits[0].float()

        return logits
