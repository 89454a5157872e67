"""A GGUF file's metadata in the spelling of config.json and generation_config.json."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from pymllm.checkpoint.gguf_file import GgufFile
from pymllm.errors import CheckpointError

ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
ROPE_FREQS = "rope_freqs.weight"
_DTYPES = {0: "float32", 1: "float16", 32: "bfloat16"}  # general.file_type of files that are not quantized
_IDS = {"bos_token_id": "bos", "eos_token_id": "eos", "pad_token_id": "padding"}
_SAMPLING = {
    "temp": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "penalty_repeat": "repetition_penalty",
}


def read_config(file: GgufFile) -> dict[str, Any]:
    """config.json for a llama, qwen2 or qwen3 GGUF file.

    Raises CheckpointError, naming the architecture or the key, for what is not supported: guessing would
    give a model that runs and answers wrongly.
    """
    _check_supported(file)
    heads = _integer(file, "attention.head_count")
    hidden = _integer(file, "embedding_length")
    head_dim = _integer(file, "attention.key_length", hidden // heads)
    _check_head(file, head_dim)
    vocabulary = file.tensors.get("token_embd.weight")
    if vocabulary is None:
        raise CheckpointError(f"{file.path} holds no token_embd.weight: it is not a whole model")
    context = _integer(file, "context_length")
    config = {
        "architectures": [ARCHITECTURES[file.architecture]],
        "model_type": file.architecture,
        "vocab_size": vocabulary.shape[0],
        "hidden_size": hidden,
        "intermediate_size": _integer(file, "feed_forward_length"),
        "num_hidden_layers": _integer(file, "block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": _integer(file, "attention.head_count_kv", heads),
        "head_dim": head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": float(_required(file, "attention.layer_norm_rms_epsilon")),
        "max_position_embeddings": context,
        "rope_theta": float(_get(file, "rope.freq_base", 10000.0)),
        "rope_scaling": _rope_scaling(file, head_dim, context),
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "attention_bias": "blk.0.attn_q.bias" in file.tensors,
        "mlp_bias": "blk.0.ffn_up.bias" in file.tensors,
        **_token_ids(file),
    }
    file_type = file.metadata.get("general.file_type")
    if file_type in _DTYPES:
        config["dtype"] = _DTYPES[file_type]
    window = _get(file, "attention.sliding_window")
    if window:
        config |= {"sliding_window": int(window), "use_sliding_window": True}
    return config


def read_generation_config(file: GgufFile) -> dict[str, Any]:
    """generation_config.json: token ids (every end token that the file declares) and sampling defaults."""
    generation: dict[str, Any] = _token_ids(file)
    ends = [file.metadata.get(f"tokenizer.ggml.{kind}_token_id") for kind in ("eos", "eot", "eom")]
    declared = list(dict.fromkeys(int(end) for end in ends if end is not None))
    if declared:
        generation["eos_token_id"] = declared
    for key, name in _SAMPLING.items():
        value = file.metadata.get(f"general.sampling.{key}")
        if value is not None:
            generation[name] = value
    return generation


def _token_ids(file: GgufFile) -> dict[str, Any]:
    found = {name: file.metadata.get(f"tokenizer.ggml.{key}_token_id") for name, key in _IDS.items()}
    return {name: int(value) for name, value in found.items() if value is not None}


def _check_supported(file: GgufFile) -> None:
    if file.architecture not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise CheckpointError(f"{file.path} has the GGUF architecture '{file.architecture}': {known} can be read")
    if int(file.metadata.get("split.count", 1)) > 1:
        raise CheckpointError(f"{file.path} is one of several parts: join them with `llama-gguf-split --merge` first")
    if _get(file, "expert_count", 0):
        raise CheckpointError(f"{file.path} is a mixture of experts, which cannot be read from GGUF: use safetensors")
    scale = {name: _get(file, name) for name in ("logit_scale", "embedding_scale", "residual_scale", "attention.scale")}
    set_ = [name for name, value in scale.items() if value not in (None, 0, 1)]
    if set_:
        raise CheckpointError(
            f"{file.path} sets {file.architecture}.{set_[0]}, which is not supported: use safetensors"
        )


def _check_head(file: GgufFile, head_dim: int) -> None:
    """Only whole-head rotation and values as wide as keys are what these architectures' models compute."""
    for key in ("rope.dimension_count", "attention.value_length"):
        value = _integer(file, key, head_dim)
        if value != head_dim:
            raise CheckpointError(
                f"{file.path} has {file.architecture}.{key} {value} with heads of {head_dim}, which is not supported"
            )


def _rope_scaling(file: GgufFile, head_dim: int, context: int) -> dict[str, Any] | None:
    kind = str(_get(file, "rope.scaling.type", "none"))
    factor = float(_get(file, "rope.scaling.factor", _get(file, "rope.scale_linear", 1.0)))
    if ROPE_FREQS in file.tensors:
        if kind != "none":
            raise CheckpointError(f"{file.path} has both {ROPE_FREQS} and rope.scaling.type {kind}: use safetensors")
        return _llama3_scaling(file, head_dim)
    if kind == "none" and "rope.scaling.type" not in file.metadata and factor != 1.0:
        kind = "linear"  # files older than rope.scaling.type have the factor alone
    if kind == "none":
        return None
    if kind == "linear":
        return {"rope_type": "linear", "factor": factor}
    if kind == "yarn":
        return _yarn_scaling(file, factor, context)
    raise CheckpointError(f"{file.path} has rope.scaling.type '{kind}': none, linear and yarn can be read")


def _yarn_scaling(file: GgufFile, factor: float, context: int) -> dict[str, Any]:
    for key in ("attn_factor", "yarn_attn_factor", "yarn_ext_factor", "yarn_log_multiplier"):
        value = _get(file, f"rope.scaling.{key}")
        # What these mean differs between the converters that wrote them; 1 is "as in the paper" for all.
        if value not in (None, 1.0) and not (key == "yarn_log_multiplier" and value == 0):
            raise CheckpointError(f"{file.path} sets rope.scaling.{key} to {value}, which is not supported")
    original = _get(file, "rope.scaling.original_context_length", context)
    scaling = {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": int(original)}
    for key in ("beta_fast", "beta_slow"):
        value = _get(file, f"rope.scaling.yarn_{key}")
        if value is not None:
            scaling[key] = float(value)
    return scaling


def _llama3_scaling(file: GgufFile, head_dim: int) -> dict[str, Any]:
    """GGUF holds Llama 3's scaling as ready divisors of the frequencies. Recover the published parameters:
    the factor is the divisor of the lowest frequency; the others are the same in every Llama 3 model."""
    divisors = file.read(file.tensors[ROPE_FREQS]).reshape(-1).view(np.float32).astype(np.float64)
    factor, original = float(str(np.float32(divisors[-1]))), 8192
    expected = _llama3_divisors(float(_get(file, "rope.freq_base", 10000.0)), head_dim, factor, original)
    if divisors.shape != expected.shape or not np.allclose(divisors, expected, rtol=1e-4):
        raise CheckpointError(f"{file.path} has a {ROPE_FREQS} that is not Llama 3's scaling: use safetensors")
    return {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": original,
    }


def _llama3_divisors(theta: float, head_dim: int, factor: float, original: int) -> np.ndarray:
    """[head_dim / 2] float64: by what Llama 3.1 divides each rotary frequency (low 1, high 4)."""
    wavelengths = 2 * math.pi * theta ** (np.arange(0, head_dim, 2) / head_dim)
    smooth = np.clip((original / wavelengths - 1.0) / (4.0 - 1.0), 0.0, 1.0)
    return 1.0 / ((1 - smooth) / factor + smooth)


def _get(file: GgufFile, key: str, default: Any = None) -> Any:
    return file.metadata.get(f"{file.architecture}.{key}", default)


def _required(file: GgufFile, key: str) -> Any:
    value = _get(file, key)
    if value is None:
        raise CheckpointError(f"{file.path} lacks the key {file.architecture}.{key}: it is not a whole model")
    return value


def _integer(file: GgufFile, key: str, default: int | None = None) -> int:
    value = _required(file, key) if default is None else _get(file, key, default)
    if isinstance(value, list):
        if len(set(value)) != 1:
            raise CheckpointError(f"{file.path} has a {key} that differs by layer, which is not supported")
        value = value[0]
    return int(value)
