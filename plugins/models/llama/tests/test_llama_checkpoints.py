"""Checkpoints as they are found: tensors that are not needed, and configs that cannot be served."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from pymllm.errors import CheckpointError
from pymllm.interfaces import KVGroup
from pymllm.testing import make_tiny_checkpoint
from pymllm.testing.harness import load_model
from pymllm_model_llama.model import LlamaModel

TOKENS = [17, 250, 3, 99, 180]


def test_a_tied_heads_copy_and_stored_frequencies_are_not_read(tmp_path: Path) -> None:
    folder = make_tiny_checkpoint(tmp_path / "tied", "llama", tie_word_embeddings=True)
    expected = load_model(folder, LlamaModel).logits(TOKENS)
    tensors = load_file(folder / "model.safetensors")
    tensors["lm_head.weight"] = torch.zeros_like(tensors["model.embed_tokens.weight"])
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.zeros(8)
    save_file(tensors, folder / "model.safetensors")
    assert torch.equal(load_model(folder, LlamaModel).logits(TOKENS), expected)


def test_an_untied_head_must_be_in_the_checkpoint(tmp_path: Path) -> None:
    folder = make_tiny_checkpoint(tmp_path / "untied", "llama")
    tensors = load_file(folder / "model.safetensors")
    del tensors["lm_head.weight"]
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"lm_head\.weight"):
        load_model(folder, LlamaModel)


def test_weights_of_another_dtype_are_cast(tmp_path: Path) -> None:
    folder = make_tiny_checkpoint(tmp_path / "half", "qwen2")
    tensors = {name: tensor.half() for name, tensor in load_file(folder / "model.safetensors").items()}
    full = {name: tensor.float() for name, tensor in tensors.items()}
    save_file(full, folder / "model.safetensors")
    expected = load_model(folder, LlamaModel).logits(TOKENS)
    save_file(tensors, folder / "model.safetensors")
    assert torch.equal(load_model(folder, LlamaModel).logits(TOKENS), expected)


def test_memory_groups_need_no_model() -> None:
    config: dict[str, Any] = {
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "vocab_size": 49152,
    }
    assert LlamaModel.memory_groups(config) == (KVGroup("kv", layers=30, kv_heads=3, head_dim=64),)


def test_sliding_windows_are_refused_by_name(tmp_path: Path) -> None:
    folder = make_tiny_checkpoint(tmp_path / "window", "qwen2")
    file = folder / "config.json"
    config = json.loads(file.read_text())
    del config["layer_types"]
    file.write_text(json.dumps({**config, "use_sliding_window": True, "sliding_window": 16, "max_window_layers": 0}))
    with pytest.raises(CheckpointError, match="use_sliding_window"):
        load_model(folder, LlamaModel)
