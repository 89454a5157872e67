"""Rope rotates by the token's position: against complex multiplication in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from pymllm.layers import Rope, rope_from_config

THETA = 10000.0


def rotated(x: Tensor, positions: list[int], size: int) -> np.ndarray:
    """(a + i b) e^(i position theta^(-2 j / size)) for component j of the two halves; the rest unchanged."""
    values = x.double().numpy()
    a, b, rest = values[..., : size // 2], values[..., size // 2 : size], values[..., size:]
    angles = np.outer(positions, THETA ** (-np.arange(0, size, 2) / size))[:, None, :]
    turned = (a + 1j * b) * np.exp(1j * angles)
    return np.concatenate([turned.real, turned.imag, rest], axis=-1)


@pytest.fixture
def rope() -> Rope:
    return rope_from_config({"rope_theta": THETA}, head_dim=16, max_positions=64)


@pytest.mark.parametrize("factor, size", [(1.0, 16), (0.5, 8)])
def test_queries_and_keys_are_rotated(factor: float, size: int) -> None:
    rope = rope_from_config({"partial_rotary_factor": factor}, head_dim=16, max_positions=64)
    positions, q, k = [0, 3, 63, 3], torch.randn(4, 5, 16), torch.randn(4, 2, 16)
    new_q, new_k = rope(q, k, torch.tensor(positions))
    np.testing.assert_allclose(new_q.numpy(), rotated(q, positions, size), atol=1e-5)
    np.testing.assert_allclose(new_k.numpy(), rotated(k, positions, size), atol=1e-5)


@pytest.mark.parametrize("dtype, bound", [(torch.bfloat16, 2**-6), (torch.float16, 2**-9)])
def test_low_precision_keeps_its_dtype_and_bound(rope: Rope, dtype: torch.dtype, bound: float) -> None:
    q = torch.randn(3, 2, 16).clamp(-2, 2).to(dtype)
    new_q, _ = rope(q, q, torch.tensor([5, 6, 7]))
    assert new_q.dtype == dtype
    # Values up to 2, cosines and the sum each rounded: a few units in the last place.
    np.testing.assert_allclose(new_q.double().numpy(), rotated(q, [5, 6, 7], 16), atol=2 * bound)


def test_looking_angles_up_once_for_a_step_changes_nothing(rope: Rope) -> None:
    q, positions, other = torch.randn(3, 2, 16), torch.tensor([9, 10, 11]), torch.tensor([1, 2, 3])
    with rope.at(positions):
        inside, _ = rope(q, q, positions)
        unrelated, _ = rope(q, q, other)
        low, _ = rope(q.bfloat16(), q.bfloat16(), positions)
    np.testing.assert_allclose(inside.numpy(), rotated(q, [9, 10, 11], 16), atol=1e-5)
    np.testing.assert_allclose(unrelated.numpy(), rotated(q, [1, 2, 3], 16), atol=1e-5)
    assert low.dtype == torch.bfloat16


def test_positions_changed_in_place_after_a_step_are_seen(rope: Rope) -> None:
    q, positions = torch.randn(1, 2, 16), torch.tensor([9])
    with rope.at(positions):
        rope(q, q, positions)
    positions.fill_(20)
    np.testing.assert_allclose(rope(q, q, positions)[0].numpy(), rotated(q, [20], 16), atol=1e-5)
