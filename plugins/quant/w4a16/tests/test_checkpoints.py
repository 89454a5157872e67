"""Whole checkpoints: pymllm's logits are transformers', of the weights that other implementations read from them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from pymllm.interfaces import QuantContext
from pymllm.testing import make_tiny_checkpoint
from pymllm.testing.harness import load_model
from pymllm_model_qwen3.model import Qwen3Model
from pymllm_quant_w4a16.linear import W4A16Linear
from pymllm_quant_w4a16.method import W4A16Method
from pymllm_quant_w4a16.plugin import W4A16Options

TOKENS = [17, 250, 3, 99, 180, 42, 7, 7, 201, 64]
LAYERS = 3 * 4
"""That are quantized: qkv, o, gate and up, down."""


def served(folder: Path, **options: Any) -> Tensor:
    """pymllm's logits of TOKENS."""
    config = json.loads((folder / "config.json").read_text()).get("quantization_config")
    method = W4A16Method(W4A16Options(**options), QuantContext(torch.device("cpu"), torch.float32, config))
    harness = load_model(folder, Qwen3Model, quant=method)
    assert sum(isinstance(module, W4A16Linear) for module in harness.model.modules()) == LAYERS
    assert not harness.unfilled
    return harness.logits(TOKENS)


@torch.inference_mode()
def transformers_logits(folder: Path, **weights: Tensor) -> Tensor:
    """transformers' of the same; weights: in the place of the checkpoint's."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    for name, module in model.named_modules():
        if name in weights:
            module.weight.data = weights[name]
    return model(torch.tensor([TOKENS])).logits[0]


def check(logits: Tensor, expected: Tensor) -> None:
    assert (logits - expected).abs().max() <= 1e-4 * expected.abs().max()


@pytest.fixture(params=[{}, {"tie_word_embeddings": True, "attention_bias": True}], ids=["untied", "tied, biases"])
def plain(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A full-precision checkpoint."""
    return make_tiny_checkpoint(tmp_path / "plain", "qwen3", **request.param)


def linears(folder: Path) -> list[str]:
    """Names of the layers that checkpoints quantize."""
    model = AutoModelForCausalLM.from_pretrained(folder)
    return [name for name, m in model.named_modules() if isinstance(m, nn.Linear) and name != "lm_head"]


def write(folder: Path, tensors: dict[str, Tensor], config: dict[str, Any]) -> Path:
    """Another checkpoint beside a folder's: other tensors and a ``quantization_config``."""
    other = folder.with_name("quantized")
    other.mkdir()
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, other / "model.safetensors")
    whole = json.loads((folder / "config.json").read_text())
    (other / "config.json").write_text(json.dumps({**whole, "quantization_config": config}))
    return other


@pytest.mark.parametrize(
    "strategy, symmetric",
    [
        ({"strategy": "group", "group_size": 32}, False),
        ({"strategy": "group", "group_size": 64}, True),
        ({"strategy": "channel"}, False),
    ],
    ids=str,
)
def test_compressed_tensors_own_checkpoints(plain: Path, strategy: dict[str, Any], symmetric: bool) -> None:
    """Quantized and packed by the compressed-tensors library, loaded by transformers, which has it unpack them."""
    compressed_tensors = pytest.importorskip("compressed_tensors")
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationScheme
    from compressed_tensors.quantization.utils import calculate_qparams

    args = {"num_bits": 4, "type": "int", "symmetric": symmetric, **strategy}
    scheme = QuantizationScheme(targets=["Linear"], weights=args)
    compressor = BaseCompressor.get_value_from_registry("pack-quantized")
    tensors, unpacked = load_file(plain / "model.safetensors"), {}
    for name in linears(plain):
        weight = tensors.pop(f"{name}.weight")
        groups = weight.unflatten(1, (-1, strategy.get("group_size", weight.shape[1])))
        scale, zero = calculate_qparams(groups.amin(2), groups.amax(2), scheme.weights)
        stored = compressor.compress({"weight": weight, "weight_scale": scale, "weight_zero_point": zero}, scheme)
        unpacked[name] = compressor.decompress(dict(stored), scheme)["weight"]
        tensors |= {f"{name}.{key}": value for key, value in stored.items()}
    config = {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "quantization_status": "compressed",
        "version": compressed_tensors.__version__,
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": args}},
        "ignore": ["lm_head"],
    }
    folder = write(plain, tensors, config)
    logits = served(folder)
    check(logits, transformers_logits(plain, **unpacked))
    check(logits, decompressed_logits(folder))


@torch.inference_mode()
def decompressed_logits(folder: Path) -> Tensor:
    """transformers' of a compressed checkpoint, which it turns back while loading."""
    from transformers import CompressedTensorsConfig

    config = CompressedTensorsConfig(run_compressed=False)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, quantization_config=config)
    return model(torch.tensor([TOKENS])).logits[0]


def rounded(weight: Tensor, group: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, Tensor]:
    """By NumPy: codes [N, K], zeros and scales [N, groups], and the weight that they mean."""
    groups = weight.double().numpy().reshape(len(weight), -1, group)
    scales = ((groups.max(2) - groups.min(2)) / 15).astype(np.float16).astype(np.float64)
    zeros = np.clip(np.rint(-groups.min(2) / scales), 1, 15)
    codes = np.clip(np.rint(groups / scales[..., None]) + zeros[..., None], 0, 15)
    meant = ((codes - zeros[..., None]) * scales[..., None]).reshape(weight.shape)
    return codes.reshape(weight.shape), zeros, scales, torch.from_numpy(meant.astype(np.float32))


def words(numbers: np.ndarray, order: tuple[int, ...]) -> Tensor:
    """[R, 8 W] -> int32 [R, W]: column 8 w + order[p] is nibble p of word w."""
    out = np.zeros((numbers.shape[0], numbers.shape[1] // 8), np.uint32)
    for place, column in enumerate(order):
        out += numbers[:, column::8].astype(np.uint32) * np.uint32(16**place)
    return torch.from_numpy(out.view(np.int32))


@pytest.mark.parametrize("quant_method", ["awq", "gptq"])
def test_awq_and_gptq_checkpoints(plain: Path, quant_method: str) -> None:
    tensors, meant = load_file(plain / "model.safetensors"), {}
    for name in linears(plain):
        codes, zeros, scales, meant[name] = rounded(tensors.pop(f"{name}.weight"), 32)
        tensors[f"{name}.scales"] = torch.from_numpy(scales.T.astype(np.float16))
        if quant_method == "awq":
            tensors[f"{name}.qweight"] = words(codes.T, (0, 2, 4, 6, 1, 3, 5, 7))
            tensors[f"{name}.qzeros"] = words(zeros.T, (0, 2, 4, 6, 1, 3, 5, 7))
        else:
            tensors[f"{name}.qweight"] = words(codes, tuple(range(8))).T
            tensors[f"{name}.qzeros"] = words(zeros.T - 1, tuple(range(8)))
            tensors[f"{name}.g_idx"] = torch.arange(codes.shape[1], dtype=torch.int32) // 32
    config = {"quant_method": quant_method, "bits": 4, "group_size": 32}
    config |= {"version": "gemm", "zero_point": True} if quant_method == "awq" else {"desc_act": False, "sym": False}
    check(served(write(plain, tensors, config)), transformers_logits(plain, **meant))


def test_online(plain: Path) -> None:
    """Groups of 64 and 128 inputs are whole rows of o and qkv, and half of down's."""
    tensors = load_file(plain / "model.safetensors")
    meant = {name: nearest(tensors[f"{name}.weight"], 64) for name in linears(plain)}
    check(served(plain, online=True, group_size=64), transformers_logits(plain, **meant))


def nearest(weight: Tensor, group: int) -> Tensor:
    """Rounded by NumPy to 16 numbers a group, in float32 as the method does, so that ties fall alike."""
    groups = weight.numpy().reshape(len(weight), -1, group)
    least, most = np.minimum(groups.min(2, keepdims=True), 0), np.maximum(groups.max(2, keepdims=True), 0)
    scales = (most - least) / np.float32(15)
    zeros = np.rint(-least / scales)
    codes = np.clip(np.rint(groups / scales) + zeros, 0, 15)
    return torch.from_numpy(((codes - zeros) * scales).reshape(weight.shape))
