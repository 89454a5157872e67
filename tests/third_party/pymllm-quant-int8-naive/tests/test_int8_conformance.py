"""The method passes pymllm's kit, and a model served with it computes what its rounded weights say."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from pymllm.errors import PluginError
from pymllm.interfaces import QuantContext
from pymllm.testing import QuantMethodConformance, make_tiny_checkpoint
from pymllm.testing.harness import load_model
from pymllm_model_llama.model import LlamaModel
from pymllm_quant_int8_naive.method import Int8Linear, Int8Method
from pymllm_quant_int8_naive.plugin import Int8Options


def int8(*skip: str, checkpoint: dict | None = None, dtype: torch.dtype = torch.float32) -> Int8Method:
    options = Int8Options(skip=list(skip)) if skip else Int8Options()
    return Int8Method(options, QuantContext(torch.device("cpu"), dtype, checkpoint))


class TestInt8(QuantMethodConformance):
    # Uniform rounding to a step of max|w|/127: the error's deviation is step / sqrt(12), which for normal rows of 256
    # (max about 2.8 sigma) is 2.8 / 127 / 3.46 = 0.0064 sigma.
    tolerance = 0.01

    @pytest.fixture
    def make_method(self):
        return lambda device, dtype: Int8Method(Int8Options(), QuantContext(device, dtype, None))

    @pytest.fixture
    def refused(self):
        return {"names": ("lm_head",), "out_features": (64,)}


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return make_tiny_checkpoint(tmp_path / "llama", "llama")


def rounded_logits(checkpoint: Path, tokens: list[int], skipped: tuple[str, ...]) -> Tensor:
    """transformers with each linear weight rounded by NumPy to 255 levels per row."""
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) and not any(part in name for part in skipped):
            weight = module.weight.detach().double().numpy()
            step = np.abs(weight).max(axis=1, keepdims=True) / 127
            module.weight.data = torch.from_numpy((np.rint(weight / step) * step).astype(np.float32))
    with torch.inference_mode():
        return model(torch.tensor([tokens])).logits[0]


TOKENS = [17, 250, 3, 99, 180, 42, 7, 7, 201, 64]


def test_a_model_computes_with_the_rounded_weights(checkpoint: Path) -> None:
    expected = rounded_logits(checkpoint, TOKENS, ("lm_head",))
    logits = load_model(checkpoint, LlamaModel, quant=int8()).logits(TOKENS)
    assert (logits - expected).abs().max() <= 1e-4 * expected.abs().max()


def test_an_entry_for_one_part_skips_the_fused_projection(checkpoint: Path, caplog: pytest.LogCaptureFixture) -> None:
    expected = rounded_logits(checkpoint, TOKENS, ("lm_head", "q_proj", "k_proj", "v_proj"))
    with caplog.at_level(logging.WARNING):
        harness = load_model(checkpoint, LlamaModel, quant=int8("lm_head", "*.k_proj"))
    assert (harness.logits(TOKENS) - expected).abs().max() <= 1e-4 * expected.abs().max()
    lines = [line for line in caplog.messages if "model.layers.1.self_attn.k_proj" in line]
    assert len(lines) == 1
    assert "quant.skip names it ('*.k_proj')" in lines[0]


def test_an_entry_that_matches_nothing_is_an_error(checkpoint: Path) -> None:
    with pytest.raises(PluginError, match=r"'\*\.qkv_proj' of quant\.skip"):
        load_model(checkpoint, LlamaModel, quant=int8("lm_head", "*.qkv_proj"))


def test_the_default_entry_may_match_nothing(tmp_path: Path) -> None:
    tied = make_tiny_checkpoint(tmp_path / "tied", "llama", tie_word_embeddings=True)
    harness = load_model(tied, LlamaModel, quant=int8())
    layers = [module for module in harness.model.modules() if isinstance(module, Int8Linear)]
    assert len(layers) == 3 * 4


def test_the_checkpoint_may_ask_for_it_and_skip_layers(checkpoint: Path) -> None:
    asked = {"quant_method": "int8-naive", "skip": ["model.layers.2.*"]}
    harness = load_model(checkpoint, LlamaModel, quant=int8(checkpoint=asked))
    layers = [module for module in harness.model.modules() if isinstance(module, Int8Linear)]
    assert len(layers) == 2 * 4


@pytest.mark.parametrize("asked", [{"quant_method": "awq"}, {"quant_method": "int8-naive", "bits": 4}])
def test_another_checkpoint_format_is_refused(asked: dict) -> None:
    with pytest.raises(PluginError, match="int8-naive"):
        int8(checkpoint=asked)
