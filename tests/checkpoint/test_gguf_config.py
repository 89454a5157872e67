"""GGUF metadata: rope scaling and the rest in config.json's spelling; what is refused, and how it is said."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from pymllm.checkpoint import Checkpoint, open_checkpoint
from pymllm.config import LoadFormat, ModelConfig
from pymllm.errors import CheckpointError

KEYS: dict[str, Any] = {
    "block_count": 1,
    "context_length": 4096,
    "embedding_length": 128,
    "feed_forward_length": 64,
    "attention.head_count": 2,
    "attention.head_count_kv": 1,
    "attention.layer_norm_rms_epsilon": 1e-6,
    "rope.freq_base": 500000.0,
}


@pytest.fixture
def opened(tmp_path: Path, write_gguf: Callable[..., None]) -> Callable[..., Checkpoint]:
    def make(arch: str = "llama", tensors: dict[str, Any] | None = None, **keys: Any) -> Checkpoint:
        merged = {key: value for key, value in {**KEYS, **keys}.items() if value is not None}
        embedding = {"token_embd.weight": np.zeros((10, 128), np.float32)}
        write_gguf(tmp_path / "m.gguf", arch, merged, embedding if tensors is None else tensors)
        return open_checkpoint(ModelConfig(path=str(tmp_path / "m.gguf")))

    return make


def llama3_frequencies(scaling: dict[str, Any] | None) -> np.ndarray:
    """Rotary frequencies as transformers computes them."""
    rope = {"rope_type": "default", **(scaling or {}), "rope_theta": 500000.0}
    config = LlamaConfig(
        hidden_size=128, num_attention_heads=2, head_dim=64, max_position_embeddings=131072, rope_parameters=rope
    )
    frequencies: torch.Tensor = LlamaRotaryEmbedding(config).inv_freq
    return frequencies.double().numpy()


@pytest.mark.parametrize("factor", [8.0, 32.0])
def test_llama3_scaling_is_recovered_from_the_frequencies(opened: Callable[..., Checkpoint], factor: float) -> None:
    scaling = {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    divisors = (llama3_frequencies(None) / llama3_frequencies(scaling)).astype(np.float32)
    assert divisors.max() > 2 > divisors.min()
    tensors = {"token_embd.weight": np.zeros((10, 128), np.float32), "rope_freqs.weight": divisors}
    checkpoint = opened(tensors=tensors)
    assert checkpoint.config["rope_scaling"] == {**scaling, "factor": pytest.approx(factor, rel=1e-6)}
    assert checkpoint.tensor_names() == ["model.embed_tokens.weight"]
    tensors["rope_freqs.weight"] = divisors[::-1].copy()
    with pytest.raises(CheckpointError, match=r"rope_freqs\.weight that is not Llama 3's scaling"):
        opened(tensors=tensors)


def test_yarn_and_linear_scaling_are_read(opened: Callable[..., Checkpoint]) -> None:
    yarn = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 1024}
    assert opened("qwen3", **yarn).config["rope_scaling"] == {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 1024,
    }
    betas = {"rope.scaling.yarn_beta_fast": 16.0, "rope.scaling.yarn_beta_slow": 2.0}
    scaling = opened("qwen3", **yarn, **betas).config["rope_scaling"]
    assert (scaling["beta_fast"], scaling["beta_slow"]) == (16.0, 2.0)
    linear = opened(**{"rope.scaling.type": "linear", "rope.scaling.factor": 2.0})
    assert linear.config["rope_scaling"] == {"rope_type": "linear", "factor": 2.0}
    assert opened(**{"rope.scale_linear": 2.0}).config["rope_scaling"] == {"rope_type": "linear", "factor": 2.0}
    assert opened().config["rope_scaling"] is None
    assert opened().config["rope_theta"] == 500000.0


def test_head_size_comes_from_the_keys(opened: Callable[..., Checkpoint]) -> None:
    assert opened().config["head_dim"] == 64
    sized = {"attention.key_length": 128, "attention.value_length": 128, "rope.dimension_count": 128}
    assert opened("qwen3", **sized).config["head_dim"] == 128


def test_end_tokens_and_sampling_defaults_are_read(opened: Callable[..., Checkpoint]) -> None:
    ids = {"tokenizer.ggml.eos_token_id": 7, "tokenizer.ggml.eot_token_id": 5, "tokenizer.ggml.bos_token_id": 1}
    generation = opened(**ids, **{"general.sampling.temp": 0.6, "general.sampling.top_k": 20}).generation_config
    assert generation == {"eos_token_id": [7, 5], "bos_token_id": 1, "temperature": 0.6, "top_k": 20}


@pytest.mark.parametrize(
    ("arch", "keys", "says"),
    [
        ("gemma3", {}, "architecture 'gemma3': llama, qwen2, qwen3 can be read"),
        ("llama", {"expert_count": 8}, "mixture of experts"),
        ("llama", {"split.count": 3}, "one of several parts"),
        ("llama", {"rope.dimension_count": 32}, r"llama\.rope\.dimension_count 32 with heads of 64"),
        ("llama", {"attention.value_length": 32}, r"attention\.value_length 32"),
        ("llama", {"rope.scaling.type": "longrope"}, "'longrope': none, linear and yarn can be read"),
        ("llama", {"rope.scaling.type": "yarn", "rope.scaling.yarn_attn_factor": 0.5}, r"scaling\.yarn_attn_factor"),
        ("llama", {"logit_scale": 0.25}, r"sets llama\.logit_scale"),
        ("llama", {"attention.head_count_kv": [1, 2]}, "head_count_kv that differs by layer"),
        ("llama", {"block_count": None}, r"lacks the key llama\.block_count"),
    ],
)
def test_what_cannot_be_served_is_refused_by_name(
    opened: Callable[..., Checkpoint], arch: str, keys: dict[str, Any], says: str
) -> None:
    with pytest.raises(CheckpointError, match=says) as caught:
        opened(arch, **keys)
    assert "\n" not in str(caught.value)


def test_a_broken_file_is_named(opened: Callable[..., Checkpoint], tmp_path: Path) -> None:
    whole = opened().path.read_bytes()
    broken = tmp_path / "broken.gguf"
    rng = np.random.default_rng(0)
    cuts = [whole[:size] for size in (0, 3, 7, 30, len(whole) // 2, len(whole) - 40)]
    lengths = []
    for _ in range(200):  # eight bytes of the header overwritten: counts and lengths become nonsense
        at = int(rng.integers(0, 700))
        lengths.append(whole[:at] + rng.bytes(8) + whole[at + 8 :])
    for content in cuts:
        broken.write_bytes(content)
        with pytest.raises(CheckpointError, match=r"broken\.gguf is truncated or not a GGUF file"):
            open_checkpoint(ModelConfig(path=str(broken)))
    refused = 0
    for content in lengths:
        broken.write_bytes(content)
        try:
            open_checkpoint(ModelConfig(path=str(broken)))
        except CheckpointError:
            refused += 1
    assert refused > 100


def test_the_load_format_chooses_between_files_of_a_folder(
    tmp_path: Path, write_gguf: Callable[..., None], opened: Callable[..., Checkpoint]
) -> None:
    opened()
    folder = str(tmp_path)
    assert open_checkpoint(ModelConfig(path=folder, load_format=LoadFormat.gguf)).path.name == "m.gguf"
    assert open_checkpoint(ModelConfig(path=folder, load_format=LoadFormat.random)).config["hidden_size"] == 128
    with pytest.raises(CheckpointError, match=r"set model\.load_format to auto or gguf"):
        open_checkpoint(ModelConfig(path=str(tmp_path / "m.gguf"), load_format=LoadFormat.safetensors))
    (tmp_path / "n.gguf").write_bytes((tmp_path / "m.gguf").read_bytes())
    with pytest.raises(CheckpointError, match=r"2 \.gguf files: set model\.path to one of them \(m\.gguf, n\.gguf\)"):
        open_checkpoint(ModelConfig(path=folder))
    with pytest.raises(CheckpointError, match=r"no file .*other\.gguf"):
        open_checkpoint(ModelConfig(path=str(tmp_path / "other.gguf")))
