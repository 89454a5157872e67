"""What a compressed-tensors quantization_config says of each layer."""

from __future__ import annotations

from typing import Any

import pytest

from pymllm.checkpoint.compressed_tensors import CompressedTensors, QuantArgs, Scheme
from pymllm.errors import CheckpointError
from pymllm.interfaces import Unsupported

INT8 = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel", "dynamic": False}
TOKENS = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "token", "dynamic": True}
INT4 = {"num_bits": 4, "type": "int", "symmetric": False, "strategy": "group", "group_size": 64, "actorder": "static"}


def config(**more: Any) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": INT8, "input_activations": TOKENS, "output_activations": None}
    return {
        "quant_method": "compressed-tensors",
        "format": "int-quantized",
        "config_groups": {"group_0": group},
        "ignore": ["lm_head", "re:model\\.visual\\..*"],
        **more,
    }


def test_a_scheme() -> None:
    read = CompressedTensors.read(config())
    assert read.format == "int-quantized"
    weights = QuantArgs(8, "int", "channel", None, symmetric=True, dynamic=False, actorder=None)
    inputs = QuantArgs(8, "int", "token", None, symmetric=True, dynamic=True, actorder=None)
    assert read.scheme(["model.layers.0.mlp.down_proj"]) == Scheme("int-quantized", weights, inputs)


def test_names_and_expressions_are_ignored() -> None:
    read = CompressedTensors.read(config(ignore=["lm_head", "re:model\\.visual\\..*", "re:visual", "model.other"]))
    assert read.scheme(["lm_head"]) is None
    assert read.scheme(["model.visual.blocks.0.attn.qkv"]) is None
    assert read.scheme(["model.lm_head"]) is not None
    assert read.unmatched() == ["re:visual", "model.other"]  # an expression matches from the start


def test_the_closest_target_counts() -> None:
    groups = {
        "all": {"targets": ["Linear"], "weights": INT8, "input_activations": TOKENS},
        "attention": {"targets": ["re:.*self_attn.*"], "weights": INT4, "format": "pack-quantized"},
        "one": {"targets": ["model.layers.1.self_attn.q_proj"], "weights": INT8},
        "kept": {"targets": ["re:.*gate"], "weights": None},
    }
    read = CompressedTensors.read(config(config_groups=groups, format="mixed-precision"))
    four = read.scheme(["model.layers.0.self_attn.q_proj", "model.layers.0.self_attn.k_proj"])
    assert four is not None
    assert (four.format, four.weights.bits, four.weights.group_size) == ("pack-quantized", 4, 64)
    assert (four.weights.symmetric, four.weights.actorder, four.inputs) == (False, "static", None)
    eight = read.scheme(["model.layers.1.self_attn.q_proj"])
    assert eight is not None
    assert (eight.format, eight.weights.bits, eight.inputs) == ("mixed-precision", 8, None)
    assert read.scheme(["model.layers.1.mlp.gate"]) is None
    with pytest.raises(Unsupported, match="its parts differently"):
        read.scheme(["model.layers.1.self_attn.q_proj", "model.layers.1.self_attn.k_proj"])


def test_no_target() -> None:
    read = CompressedTensors.read(config(config_groups={"one": {"targets": ["model.a"], "weights": INT8}}, ignore=None))
    assert read.scheme(["model.b"]) is None
    assert read.unmatched() == []


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ({}, QuantArgs(8, "int", "tensor", None, symmetric=True, dynamic=False, actorder=None)),
        ({"group_size": 32}, QuantArgs(8, "int", "group", 32, symmetric=True, dynamic=False, actorder=None)),
        ({"group_size": -1}, QuantArgs(8, "int", "channel", None, symmetric=True, dynamic=False, actorder=None)),
        ({"actorder": True}, QuantArgs(8, "int", "tensor", None, symmetric=True, dynamic=False, actorder="group")),
    ],
)
def test_what_a_config_leaves_out(args: dict[str, Any], expected: QuantArgs) -> None:
    """The defaults of compressed-tensors' QuantizationArgs."""
    read = CompressedTensors.read(config(config_groups={"g": {"targets": ["Linear"], "weights": args}}))
    scheme = read.scheme(["a"])
    assert scheme is not None
    assert scheme.weights == expected


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"quant_method": "awq"}, "quant_method"),
        ({"format": None}, "format is None"),
        ({"config_groups": []}, "config_groups"),
        ({"config_groups": {"g": 3}}, "config_groups.g is not a mapping"),
        ({"config_groups": {"g": {"targets": "Linear"}}}, "config_groups.g.targets"),
        ({"config_groups": {"g": {"targets": [], "weights": {"num_bits": "8"}}}}, "config_groups.g.weights.num_bits"),
        ({"config_groups": {"g": {"targets": [], "output_activations": INT8}}}, "output_activations"),
        ({"ignore": ["re:("]}, "no regular expression"),
        ({"transform_config": {"config_groups": {"R1": {}}}}, "transform_config"),
        ({"sparsity_config": {"format": "sparse-24-bitmask"}}, "sparsity_config"),
    ],
)
def test_what_cannot_be_read_is_named(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        CompressedTensors.read(config(**wrong))
