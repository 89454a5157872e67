"""Checkpoints load as stored, compute what transformers' dequantized model computes, and are refused by name."""

from __future__ import annotations

import copy
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoModelForCausalLM
from transformers.utils.quantization_config import CompressedTensorsConfig

from pymllm.errors import CheckpointError, PluginError
from pymllm.interfaces import LinearSpec, QuantContext, Unsupported, WeightMap
from pymllm.testing import make_tiny_checkpoint
from pymllm.testing.harness import load_model
from pymllm_model_llama.model import LlamaModel
from pymllm_quant_w8a8_cutlass.layer import W8A8Linear
from pymllm_quant_w8a8_cutlass.method import W8A8Method
from pymllm_quant_w8a8_cutlass.plugin import W8A8Options

TOKENS = [17, 250, 3, 99, 180, 42, 7, 7, 201, 64]
CPU = torch.device("cpu")


def method(checkpoint: Path | None, **options: Any) -> W8A8Method:
    config = None if checkpoint is None else json.loads((checkpoint / "config.json").read_text())["quantization_config"]
    return W8A8Method(W8A8Options(**options), QuantContext(CPU, torch.float32, config))


def round_tokens(module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """A forward hook: what 8 bits leave of each token, by NumPy."""
    x = args[0].numpy()
    scale = np.abs(x).max(axis=-1, keepdims=True) / np.float32(127)
    return (torch.from_numpy(np.rint(x / scale) * scale),)


def reference(model: nn.Module, weights: dict[str, Tensor]) -> Tensor:
    """Logits of a full-precision model with those weights, whose inputs are rounded."""
    for name, module in model.named_modules():
        if name in weights:
            module.weight.data = weights[name]
            module.register_forward_pre_hook(round_tokens)
    with torch.inference_mode():
        return model(torch.tensor([TOKENS])).logits[0]


def close(found: Tensor, expected: Tensor) -> None:
    """Equal but for float32: a sum in another order may round an activation to the other neighbour, rarely."""
    error = (found - expected).abs() / expected.abs().max()
    assert error.max() <= 1e-2
    assert error.mean() <= 1e-3


def test_a_checkpoint_computes_what_its_dequantized_weights_say(compressed: Callable[..., Path]) -> None:
    folder = compressed(attention_bias=True)
    decompressed = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, quantization_config=CompressedTensorsConfig(run_compressed=False)
    )
    weights = {
        name: module.weight.detach().clone()
        for name, module in decompressed.named_modules()
        if isinstance(module, nn.Linear) and name != "lm_head"
    }
    assert all(weight.dtype == torch.float32 for weight in weights.values())
    plain = AutoModelForCausalLM.from_pretrained(folder.with_name("full"), dtype=torch.float32)
    close(load_model(folder, LlamaModel, quant=method(folder)).logits(TOKENS), reference(plain, weights))


def test_weights_and_scales_are_kept_as_stored(compressed: Callable[..., Path]) -> None:
    folder = compressed()
    stored = load_file(folder / "model.safetensors")
    model = load_model(folder, LlamaModel, quant=method(folder)).model
    layers = [module for module in model.modules() if isinstance(module, W8A8Linear)]
    assert len(layers) == 3 * 4
    for layer in layers:
        assert layer.spec is not None
        names = layer.spec.names
        assert torch.equal(layer.weight, torch.cat([stored[f"{name}.weight"] for name in names]))
        assert torch.equal(layer.weight_scale, torch.cat([stored[f"{name}.weight_scale"][:, 0] for name in names]))
        bytes_of = sum(tensor.nbytes for tensor in (*layer.parameters(), *layer.buffers()))
        assert bytes_of == layer.weight.numel() + 4 * len(layer.weight)


def test_online_is_rounding_to_the_nearest(tmp_path: Path) -> None:
    folder = make_tiny_checkpoint(tmp_path / "llama", "llama")
    plain = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    weights = {}
    for name, module in plain.named_modules():
        if isinstance(module, nn.Linear) and name != "lm_head":
            weight = module.weight.detach().numpy()
            step = np.abs(weight).max(axis=1, keepdims=True) / np.float32(127)
            weights[name] = torch.from_numpy(np.rint(weight / step) * step)
    close(load_model(folder, LlamaModel, quant=method(None, online=True)).logits(TOKENS), reference(plain, weights))


def test_an_ignored_part_keeps_the_fused_projection_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = make_tiny_checkpoint(tmp_path / "llama", "llama")
    ignore = ["lm_head", r"re:.*\.1\.self_attn\.[qkv]_proj"]
    with caplog.at_level(logging.WARNING):
        model = load_model(folder, LlamaModel, quant=method(None, online=True, ignore=ignore)).model
    assert sum(isinstance(module, W8A8Linear) for module in model.modules()) == 3 * 4 - 1
    assert caplog.messages == [], "what was asked for is no warning"


def test_an_ignore_entry_that_names_nothing_is_an_error(tmp_path: Path) -> None:
    folder = make_tiny_checkpoint(tmp_path / "llama", "llama")
    with pytest.raises(PluginError, match=r"matches 're:\.\*qkv_proj' of quant\.ignore"):
        load_model(folder, LlamaModel, quant=method(None, online=True, ignore=["lm_head", "re:.*qkv_proj"]))


def test_weights_that_are_not_int8_are_an_error(compressed: Callable[..., Path]) -> None:
    folder = compressed()
    file = folder / "model.safetensors"
    save_file({name: tensor.float() for name, tensor in load_file(file).items()}, file)
    with pytest.raises(CheckpointError, match=r"_proj\.weight is float32, but quantization_config says int8"):
        load_model(folder, LlamaModel, quant=method(folder))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"weights": {"num_bits": 4}}, "its weights are 4-bit int, per channel"),
        ({"weights": {"strategy": "tensor"}}, "its weights are 8-bit int, per tensor"),
        ({"weights": {"symmetric": False}}, "asymmetric"),
        ({"input_activations": None}, "its activations are not quantized"),
        ({"input_activations": {"dynamic": False}}, "its activations are 8-bit int, per token, symmetric, static"),
        ({"input_activations": {"symmetric": False}}, "its activations are 8-bit int, per token, asymmetric"),
        ({"format": "pack-quantized"}, "its format is pack-quantized"),
    ],
    ids=str,
)
def test_other_schemes_are_refused_by_name(change: dict[str, Any], reason: str) -> None:
    args = {"num_bits": 8, "type": "int", "symmetric": True}
    group: dict[str, Any] = {
        "targets": ["Linear"],
        "weights": {**args, "strategy": "channel"},
        "input_activations": {**args, "strategy": "token", "dynamic": True},
    }
    changed = copy.deepcopy(group)
    for key, value in change.items():
        changed[key] = {**group[key], **value} if isinstance(value, dict) else value
    config = {"quant_method": "compressed-tensors", "format": "int-quantized", "config_groups": {"group_0": changed}}
    made = W8A8Method(W8A8Options(), QuantContext(CPU, torch.float32, config))
    weights = WeightMap()
    with pytest.raises(Unsupported, match=reason):
        made.linear(LinearSpec(("a.q_proj",), 64, (32,), False, torch.float32, CPU), weights)
    assert list(weights) == []


def test_what_no_group_names_is_in_full_precision() -> None:
    args = {"num_bits": 8, "type": "int", "symmetric": True}
    group = {
        "targets": ["re:.*mlp.*"],
        "weights": {**args, "strategy": "channel"},
        "input_activations": {**args, "strategy": "token", "dynamic": True},
    }
    config = {"quant_method": "compressed-tensors", "format": "int-quantized", "config_groups": {"group_0": group}}
    made = W8A8Method(W8A8Options(), QuantContext(CPU, torch.float32, config))
    weights = WeightMap()
    for name in ("a.q_proj", "a.mlp.up_proj"):
        made.linear(LinearSpec((name,), 64, (32,), False, torch.float32, CPU), weights)
    assert list(weights) == ["a.q_proj.weight", "a.mlp.up_proj.weight", "a.mlp.up_proj.weight_scale"]


@pytest.mark.parametrize(
    ("options", "checkpoint", "message"),
    [
        ({}, None, "set quant.online to true"),
        ({"online": True}, {"quant_method": "compressed-tensors"}, "is quantized already: leave out quant.online"),
        ({"ignore": ["a"]}, {"quant_method": "compressed-tensors"}, "quant.ignore needs quant.online"),
        ({}, {"quant_method": "awq"}, "compressed-tensors"),
    ],
    ids=str,
)
def test_what_cannot_be_read_is_an_error(options: dict[str, Any], checkpoint: Any, message: str) -> None:
    with pytest.raises(PluginError, match=message):
        W8A8Method(W8A8Options(**options), QuantContext(CPU, torch.float32, checkpoint))
