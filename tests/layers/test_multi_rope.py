"""M-RoPE rotates by three positions: against transformers, against Rope where they are one, and as kernels see it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import Qwen3VLTextConfig
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLTextRotaryEmbedding, apply_rotary_pos_emb

from pymllm.errors import CheckpointError
from pymllm.layers import MultiRope, rope_from_config
from pymllm.layers.kernels import write_qkv
from pymllm.layers.multi_rope import interleaved_axes
from pymllm.layers.rope_scaling import rope_spec

POSITIONS = torch.tensor([[0, 1, 1, 1, 4000, 70000], [0, 1, 2, 3, 4000, 70000], [0, 1, 5, 2, 4001, 69999]])

ROPES: dict[str, dict[str, Any]] = {
    "plain": {"rope_type": "default", "rope_theta": 5000000.0, "mrope_section": [24, 20, 20]},
    "yarn": {
        "rope_type": "yarn",
        "rope_theta": 5000000.0,
        "mrope_section": [24, 20, 20],
        "factor": 3.0,
        "original_max_position_embeddings": 65536,
    },
    "other sections": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [40, 8, 16]},
}


def make(parameters: dict[str, Any]) -> MultiRope:
    config = {"rope_parameters": parameters, "max_position_embeddings": 196608}
    spec = rope_spec(config, 128, 196608)
    return MultiRope(spec, interleaved_axes(config, 64))


@pytest.mark.parametrize("name", ROPES)
def test_angles_equal_transformers(name: str) -> None:
    config = Qwen3VLTextConfig(head_dim=128, rope_parameters=dict(ROPES[name]), max_position_embeddings=196608)
    cos, sin = Qwen3VLTextRotaryEmbedding(config)(torch.zeros(1), POSITIONS[:, None])
    rope = make(ROPES[name])
    q, k = torch.randn(6, 4, 128), torch.randn(6, 2, 128)
    expected = apply_rotary_pos_emb(q, k, cos[0], sin[0])
    with rope.at(POSITIONS) as rows:
        assert rope.cos_sin.dtype == torch.float32
        # YaRN's frequencies may differ in their last bit, 2^-24 of angles up to 70,000 times 0.01.
        torch.testing.assert_close(rope.cos_sin, torch.cat([cos[0, :, :64], sin[0, :, :64]], 1), rtol=0, atol=1e-4)
        found = rope(q, k, rows)
    torch.testing.assert_close(found, expected, rtol=0, atol=5e-4)


def test_text_is_rotated_as_by_one_position() -> None:
    rope, plain = make(ROPES["plain"]), rope_from_config({"rope_theta": 5000000}, 128, 100)
    positions = torch.tensor([0, 7, 99])
    q = torch.randn(3, 2, 128)
    with rope.at(positions.expand(3, -1)) as rows:
        torch.testing.assert_close(rope(q, q, rows), plain(q, q, positions), rtol=0, atol=1e-6)


def test_kernels_need_not_know_of_axes() -> None:
    """What writes a cache looks the step's table up by the positions that it is called with."""
    rope = make(ROPES["plain"])
    qkv = torch.randn(6, 4 * 128)
    q, k, v = torch.empty(6, 2, 128), torch.empty(6, 1, 1, 128), torch.empty(6, 1, 1, 128)
    with rope.at(POSITIONS) as rows:
        write_qkv(qkv, q, k, v, torch.arange(6), rows, rope.cos_sin)
        parts = qkv.view(6, 4, 128).split([2, 1, 1], dim=1)
        expected = rope(parts[0], parts[1], rows)
    torch.testing.assert_close((q, k[:, 0]), expected, rtol=0, atol=1e-5)


def test_a_table_is_of_one_step() -> None:
    rope = make(ROPES["plain"])
    with rope.at(POSITIONS):
        first = rope.cos_sin
        assert len(first) == 6
    assert len(rope.cos_sin) == 0
    with rope.at(POSITIONS[:, 1:2]):
        assert torch.equal(rope.cos_sin, first[1:2])


def test_components_take_turns_as_long_as_sections_last() -> None:
    assert interleaved_axes({"rope_scaling": {"mrope_section": [4, 2, 2]}}, 8) == (0, 1, 2, 0, 1, 2, 0, 0)
    assert interleaved_axes({"rope_parameters": {"mrope_section": [3, 2, 1]}}, 6) == (0, 1, 2, 0, 1, 0)


@pytest.mark.parametrize("section", [[24, 20], [24, 20, 21], [24.0, 20, 20], "all", [True, 43, 20]])
def test_other_sections_are_refused(section: Any) -> None:
    with pytest.raises(CheckpointError, match="mrope_section"):
        interleaved_axes({"rope_scaling": {"mrope_section": section}}, 64)
