"""Layers of vision towers, against float64 NumPy and PyTorch's own modules."""

from __future__ import annotations

from itertools import pairwise
from typing import Literal

import numpy as np
import pytest
import torch
from torch import nn

from pymllm.interfaces import AttentionContext, WeightMap
from pymllm.layers import MLP, BuildContext, FullPrecision
from pymllm.testing.reference import ReferenceAttention


@pytest.fixture
def weights() -> WeightMap:
    return WeightMap()


@pytest.fixture
def context(weights: WeightMap) -> BuildContext:
    cpu = torch.device("cpu")
    return BuildContext(
        dtype=torch.float32,
        device=cpu,
        quant=FullPrecision(),
        attention=ReferenceAttention(AttentionContext(cpu, torch.float32, 4, {})),
        weights=weights,
        max_context=64,
        prefix="model.visual",
    )


def fill(weights: WeightMap) -> dict[str, torch.Tensor]:
    """Random values for everything that is bound, by name."""
    filled = {}
    for name in weights:
        binding = weights.get(name)
        assert binding is not None
        filled[name] = torch.randn(binding.shape)
        binding.load(filled[name])
    return filled


def test_layer_norm(context: BuildContext, weights: WeightMap) -> None:
    norm = context.layer_norm("norm1", 24, 1e-3)
    filled = fill(weights)
    x = torch.randn(5, 24) * 3 + 1
    wide = x.double().numpy()
    quotient = (wide - wide.mean(-1, keepdims=True)) / np.sqrt(wide.var(-1, keepdims=True) + 1e-3)
    expected = quotient * filled["model.visual.norm1.weight"].numpy() + filled["model.visual.norm1.bias"].numpy()
    np.testing.assert_allclose(norm(x).numpy(), expected, atol=1e-5)


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_mlp(context: BuildContext, weights: WeightMap, approximate: Literal["none", "tanh"]) -> None:
    mlp = MLP(context.at("mlp"), ("linear_fc1", "linear_fc2"), (8, 12, 8), approximate=approximate)
    filled = fill(weights)
    reference = nn.Sequential(nn.Linear(8, 12), nn.GELU(approximate=approximate), nn.Linear(12, 8))
    names = ("linear_fc1.weight", "linear_fc1.bias", "linear_fc2.weight", "linear_fc2.bias")
    for parameter, name in zip(reference.parameters(), names):
        parameter.data.copy_(filled[f"model.visual.mlp.{name}"])
    x = torch.randn(3, 8)
    with torch.inference_mode():
        torch.testing.assert_close(mlp(x), reference(x))
        torch.testing.assert_close(mlp.onto(x.clone(), lambda h: 2 * h), x + reference(2 * x))


@pytest.mark.parametrize("size", [16, 72])
def test_attention_stays_inside_each_sequence(context: BuildContext, size: int) -> None:
    layer = context.varlen_attention(heads=2, head_dim=size)
    starts = [0, 3, 4, 9]
    qkv, angles = torch.randn(9, 6 * size), torch.randn(9, size // 2)
    found = layer(qkv, torch.arange(9), torch.cat([angles.cos(), angles.sin()], 1), starts)
    q, k, v = qkv.double().numpy().reshape(9, 3, 2, size).transpose(1, 0, 2, 3)
    turn = np.exp(1j * angles.double().numpy())[:, None]
    q, k = ((x[..., : size // 2] + 1j * x[..., size // 2 :]) * turn for x in (q, k))
    expected = np.empty((9, 2, size))
    for start, end in pairwise(starts):
        for head in range(2):
            scores = (q[start:end, head] @ k[start:end, head].conj().T).real / np.sqrt(size)
            shares = np.exp(scores - scores.max(-1, keepdims=True))
            expected[start:end, head] = shares / shares.sum(-1, keepdims=True) @ v[start:end, head]
    np.testing.assert_allclose(found.numpy(), expected.reshape(9, -1), atol=1e-5)
