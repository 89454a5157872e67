"""Published configs build with the tensors that published checkpoints have; what cannot be served is refused."""

from __future__ import annotations

import copy
import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

from pymllm.errors import CheckpointError
from pymllm.interfaces import AttentionContext, KVGroup, WeightMap
from pymllm.layers import BuildContext, FullPrecision
from pymllm.registry import Registry
from pymllm.testing.harness import load_model
from pymllm.testing.reference import ReferenceAttention
from pymllm_model_qwen3_vl.model import Qwen3VLModel
from pymllm_model_qwen3_vl.processor import Qwen3VLProcessor

QWEN3_VL_2B: dict[str, Any] = {
    "architectures": ["Qwen3VLForConditionalGeneration"],
    "image_token_id": 151655,
    "model_type": "qwen3_vl",
    "tie_word_embeddings": True,
    "video_token_id": 151656,
    "vision_end_token_id": 151653,
    "vision_start_token_id": 151652,
    "text_config": {
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": 151643,
        "dtype": "bfloat16",
        "eos_token_id": 151645,
        "head_dim": 128,
        "hidden_act": "silu",
        "hidden_size": 2048,
        "initializer_range": 0.02,
        "intermediate_size": 6144,
        "max_position_embeddings": 262144,
        "model_type": "qwen3_vl_text",
        "num_attention_heads": 16,
        "num_hidden_layers": 28,
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-06,
        "rope_scaling": {"mrope_interleaved": True, "mrope_section": [24, 20, 20], "rope_type": "default"},
        "rope_theta": 5000000,
        "tie_word_embeddings": True,
        "use_cache": True,
        "vocab_size": 151936,
    },
    "vision_config": {
        "deepstack_visual_indexes": [5, 11, 17],
        "depth": 24,
        "hidden_act": "gelu_pytorch_tanh",
        "hidden_size": 1024,
        "in_channels": 3,
        "initializer_range": 0.02,
        "intermediate_size": 4096,
        "model_type": "qwen3_vl",
        "num_heads": 16,
        "num_position_embeddings": 2304,
        "out_hidden_size": 2048,
        "patch_size": 16,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
    },
}

TEXT_4B = {"hidden_size": 2560, "intermediate_size": 9728, "num_hidden_layers": 36, "num_attention_heads": 32}
TEXT_8B = {"hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36, "num_attention_heads": 32}
VISION_8B = {"depth": 27, "hidden_size": 1152, "intermediate_size": 4304, "deepstack_visual_indexes": [8, 16, 24]}


def published(text: dict[str, Any], vision: dict[str, Any], tied: bool) -> dict[str, Any]:
    config = copy.deepcopy(QWEN3_VL_2B)
    config["text_config"].update(text)
    config["vision_config"].update(vision)
    return {**config, "tie_word_embeddings": tied}


CONFIGS = {
    "2B": QWEN3_VL_2B,
    "4B": published(TEXT_4B, {"out_hidden_size": 2560}, True),
    "8B": published(TEXT_8B, {**VISION_8B, "out_hidden_size": 4096}, False),
}


def build(config: dict[str, Any], device: str = "meta") -> tuple[Qwen3VLModel, WeightMap]:
    weights = WeightMap()
    groups = {group.name: group for group in Qwen3VLModel.memory_groups(config)}
    context = BuildContext(
        dtype=torch.bfloat16,
        device=torch.device(device),
        quant=FullPrecision(),
        attention=ReferenceAttention(AttentionContext(torch.device(device), torch.bfloat16, 16, groups)),
        weights=weights,
        max_context=4096,
    )
    return Qwen3VLModel(config, context), weights


@pytest.mark.parametrize("name", CONFIGS)
def test_published_sizes_have_the_tensors_of_transformers(name: str) -> None:
    config = CONFIGS[name]
    with torch.device("meta"):
        reference: Any = Qwen3VLForConditionalGeneration(Qwen3VLConfig(**copy.deepcopy(config)))
    expected = {key: tuple(tensor.shape) for key, tensor in reference.state_dict().items()}
    model, weights = build(config)
    bound = {key: binding.shape for key in weights if (binding := weights.get(key)) is not None}
    assert {key: shape for key, shape in expected.items() if key not in bound} == (
        {"lm_head.weight": (151936, config["text_config"]["hidden_size"])} if config["tie_word_embeddings"] else {}
    )
    assert weights.ignored("lm_head.weight") == config["tie_word_embeddings"]
    assert bound.items() <= expected.items()
    assert sum(p.numel() for p in model.parameters()) == sum(math.prod(shape) for shape in bound.values())


def test_memory_groups_are_of_the_language_model() -> None:
    assert Qwen3VLModel.memory_groups(CONFIGS["4B"]) == (KVGroup("kv", layers=36, kv_heads=8, head_dim=128),)
    assert build(CONFIGS["4B"])[0].media_width == 4 * 2560


def test_a_tied_heads_copy_is_not_read(tiny72: Path, tmp_path: Path) -> None:
    tensors = load_file(tiny72 / "model.safetensors")
    assert "lm_head.weight" not in tensors
    tensors["lm_head.weight"] = torch.zeros_like(tensors["model.language_model.embed_tokens.weight"])
    for name in ("config.json", "generation_config.json"):
        (tmp_path / name).write_bytes((tiny72 / name).read_bytes())
    save_file(tensors, tmp_path / "model.safetensors")
    tokens = [5, 250, 3]
    assert torch.equal(
        load_model(tmp_path, Qwen3VLModel).logits(tokens), load_model(tiny72, Qwen3VLModel).logits(tokens)
    )


@pytest.mark.parametrize(
    "section, change, message",
    [
        ("text_config", None, "no 'text_config'"),
        ("vision_config", None, "no 'vision_config'"),
        ("text_config", {"num_hidden_layers": 2}, "3 deepstack levels, but 2 layers"),
        ("text_config", {"rope_scaling": {"mrope_section": [24, 20, 19]}}, "sum is 64"),
        ("text_config", {"rope_scaling": {"mrope_section": "all"}}, "mrope_section is all"),
        ("text_config", {"rope_scaling": {"mrope_interleaved": False}}, "mrope_interleaved false"),
        ("vision_config", {"out_hidden_size": 1024}, "out_hidden_size 1024"),
        ("vision_config", {"hidden_act": "relu"}, "vision_config.hidden_act 'relu'"),
        ("vision_config", {"in_channels": 4}, "vision_config.in_channels 4"),
        ("vision_config", {"num_heads": 15}, "15 heads"),
        ("vision_config", {"depth": "24"}, "depth = '24'"),
        ("vision_config", {"deepstack_visual_indexes": [5, 24]}, "deepstack_visual_indexes"),
        ("vision_config", {"deepstack_visual_indexes": [11, 5]}, "deepstack_visual_indexes"),
    ],
)
def test_what_is_not_computed_is_refused_by_name(section: str, change: dict[str, Any] | None, message: str) -> None:
    config = copy.deepcopy(QWEN3_VL_2B)
    config[section] = {**config[section], **change} if change is not None else None
    with pytest.raises(CheckpointError, match=message):
        build(config)


def test_the_plugin_serves_the_architecture() -> None:
    registry = Registry()
    spec: Any = registry.load("model", "qwen3-vl")
    assert spec.architectures == ("Qwen3VLForConditionalGeneration",)
    assert registry.factory("model", "qwen3-vl", spec) is Qwen3VLModel
    assert registry.processor("qwen3-vl", spec) is Qwen3VLProcessor


def test_the_processor_imports_no_torch(tiny: Path) -> None:
    code = (
        "import json, sys, pathlib, numpy\n"
        "from pymllm_model_qwen3_vl.processor import Qwen3VLProcessor\n"
        "from pymllm.interfaces import ProcessorContext\n"
        f"folder = pathlib.Path({str(tiny)!r})\n"
        "config = json.loads((folder / 'config.json').read_text())\n"
        "medium = Qwen3VLProcessor(config, ProcessorContext(folder)).image(numpy.zeros((70, 70, 3), numpy.uint8))\n"
        "print(medium.tokens, sorted({'torch', 'transformers'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "4 []"


def test_old_and_new_spelling_of_rope_are_one(tiny: Path) -> None:
    config = json.loads((tiny / "config.json").read_text())
    new, _ = build(config, "cpu")
    rope = config["text_config"].pop("rope_parameters")
    theta = rope.pop("rope_theta")
    config["text_config"].update(rope_scaling=rope, rope_theta=theta)
    old, _ = build(config, "cpu")
    positions = torch.tensor([[3, 9], [1, 9], [5, 9]])
    with new.decoder.rope.at(positions), old.decoder.rope.at(positions):
        assert torch.equal(new.decoder.rope.cos_sin, old.decoder.rope.cos_sin)
