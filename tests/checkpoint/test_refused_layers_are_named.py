"""A quantized checkpoint with layers that its plugin refuses: an error names them, the reason and the cure."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import engines
from pymllm.errors import CheckpointError
from pymllm.testing.tiny import make_tiny_checkpoint

WEIGHTS = {"num_bits": 4, "group_size": 32}


def packed(weight: Tensor) -> dict[str, Tensor]:
    """A layer's tensors as ``pack-quantized`` has them, all of codes 0."""
    rows, columns = weight.shape
    return {
        "weight_packed": torch.zeros(rows, columns // 8, dtype=torch.int32),
        "weight_scale": torch.ones(rows, columns // 32),
        "weight_shape": torch.tensor([rows, columns]),
    }


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """Layers in 4 bits, but for the attention's of the first, which the group for them quantizes in an order that
    w4a16 cannot read, and the down projections, which are in full precision."""
    folder = make_tiny_checkpoint(tmp_path / "qwen3", "qwen3")
    tensors = load_file(folder / "model.safetensors")
    for name in [name for name in tensors if name.endswith("_proj.weight") and "down" not in name]:
        layer = name.removesuffix(".weight")
        tensors |= {f"{layer}.{key}": tensor for key, tensor in packed(tensors.pop(name)).items()}
    save_file(tensors, folder / "model.safetensors")
    groups: dict[str, Any] = {
        "ordered": {"targets": [r"re:model\.layers\.0\.self_attn"], "weights": {**WEIGHTS, "actorder": "group"}},
        "others": {"targets": ["Linear"], "weights": WEIGHTS},
    }
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": groups,
        "ignore": ["lm_head", r"re:.*down_proj"],
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_the_layer_the_reason_and_the_cure(checkpoint: Path) -> None:
    with pytest.raises(CheckpointError) as caught:
        engines.start(checkpoint)
    assert str(caught.value) == (
        f"the quant plugin cannot serve layers that are quantized in checkpoint {checkpoint}: "
        "actorder group is not supported, only static and weight: "
        + ", ".join(f"model.layers.0.self_attn.{part}_proj" for part in "koqv")
        + "; set quant.plugin to one that can (see 'pymllm plugins'), or use a checkpoint that keeps these layers in "
        "full precision"
    )


def test_a_refused_layer_in_full_precision_is_served(checkpoint: Path, caplog: pytest.LogCaptureFixture) -> None:
    tensors = load_file(checkpoint / "model.safetensors")
    for name in [name for name in tensors if name.startswith("model.layers.0.self_attn") and "_proj" in name]:
        packed_tensor = tensors.pop(name)
        if name.endswith("weight_shape"):
            tensors[name.replace("weight_shape", "weight")] = torch.zeros(packed_tensor.tolist())
    save_file(tensors, checkpoint / "model.safetensors")
    engines.start(checkpoint).close()
    assert any("layers.0.self_attn.o_proj: served in full precision, actorder group" in one for one in caplog.messages)
