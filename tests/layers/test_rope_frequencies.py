"""Rotary tables equal transformers' for every supported kind, in both spellings; others are refused by name."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from pymllm.errors import CheckpointError
from pymllm.layers import rope_from_config

SIZES = {"hidden_size": 256, "num_attention_heads": 4, "head_dim": 64, "max_position_embeddings": 512}
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
YARN = {"factor": 4.0, "original_max_position_embeddings": 128}

CONFIGS: dict[str, dict[str, Any]] = {
    "nothing said": {},
    "old theta": {"rope_theta": 500000.0, "rope_scaling": None},
    "integer theta": {"rope_theta": 1000000},
    "new theta": {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}},
    "theta inside before outside": {"rope_theta": 1e4, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}},
    "old linear": {"rope_theta": 1e5, "rope_scaling": {"type": "linear", "factor": 2.5}},
    "new linear": {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e5, "factor": 2}},
    "old llama3": {"rope_theta": 5e5, "rope_scaling": {"rope_type": "llama3", **LLAMA3}},
    "new llama3": {"rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5, **LLAMA3}},
    "old yarn": {"rope_theta": 1e6, "rope_scaling": {"type": "yarn", **YARN}},
    "new yarn": {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e6, **YARN}},
    "yarn without a length": {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}},
    "yarn betas": {"rope_scaling": {"rope_type": "yarn", **YARN, "beta_fast": 16, "beta_slow": 2}},
    "yarn not truncated": {"rope_scaling": {"rope_type": "yarn", **YARN, "truncate": False}},
    "yarn attention factor": {"rope_scaling": {"rope_type": "yarn", **YARN, "attention_factor": 0.75}},
    "yarn mscale": {"rope_scaling": {"rope_type": "yarn", **YARN, "mscale": 1.0, "mscale_all_dim": 0.707}},
    "yarn factor from lengths": {"rope_scaling": {"rope_type": "yarn", **YARN, "factor": None}},
    "dynamic within the trained length": {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}},
}


@pytest.mark.parametrize("name", CONFIGS)
def test_tables_equal_transformers(name: str) -> None:
    config = {**SIZES, **CONFIGS[name]}
    reference = LlamaRotaryEmbedding(LlamaConfig.from_dict(config))
    cos, sin = reference(torch.zeros(1, dtype=torch.float32), torch.arange(512)[None])
    expected = torch.cat([cos[0, :, :32], sin[0, :, :32]], dim=-1)
    table = rope_from_config(config, head_dim=64, max_positions=512).cos_sin
    # Angles up to 512 radians hold 3e-5 in float32.
    torch.testing.assert_close(table, expected, rtol=0, atol=1e-4)


def test_scalings_differ_from_the_default_here() -> None:
    """Otherwise the comparison above would prove nothing about them."""
    plain = rope_from_config(SIZES, 64, 512).cos_sin
    for name in ("old linear", "old llama3", "old yarn"):
        config = {**SIZES, **CONFIGS[name], "rope_theta": 10000.0}
        assert (rope_from_config(config, 64, 512).cos_sin - plain).abs().max() > 0.1, name


def test_a_length_beside_the_parameters_is_the_trained_one() -> None:
    scaling = {"rope_type": "llama3", **LLAMA3, "original_max_position_embeddings": 128}
    beside = rope_from_config({**SIZES, "rope_scaling": scaling, "original_max_position_embeddings": 64}, 64, 32)
    inside = rope_from_config({**SIZES, "rope_scaling": {"rope_type": "llama3", **LLAMA3}}, 64, 32)
    assert torch.equal(beside.cos_sin, inside.cos_sin)


@pytest.mark.parametrize(
    "spelling", [{"partial_rotary_factor": 0.5}, {"rope_parameters": {"partial_rotary_factor": 0.5}}]
)
def test_a_partial_rotary_factor_shortens_the_table(spelling: dict[str, Any]) -> None:
    assert torch.equal(
        rope_from_config({**SIZES, **spelling}, head_dim=64, max_positions=32).cos_sin,
        rope_from_config(SIZES, head_dim=32, max_positions=32).cos_sin,
    )


@pytest.mark.parametrize(
    "config, message",
    [
        ({"rope_scaling": {"rope_type": "longrope", "factor": 2.0}}, "rope_type 'longrope' is not supported"),
        ({"rope_parameters": {"rope_type": "spiral"}}, "rope_type 'spiral' is not supported"),
        ({"rope_scaling": {"type": "linear"}}, "no 'factor'"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "no 'low_freq_factor'"),
        ({"rope_scaling": {"type": "linear", "factor": "two"}}, "factor = 'two'"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "set model.max_context to at most 512"),
    ],
)
def test_what_cannot_be_served_right_is_refused_by_name(config: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        rope_from_config({**SIZES, **config}, head_dim=64, max_positions=1024)
