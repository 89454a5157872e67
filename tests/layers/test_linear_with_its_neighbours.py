"""A linear layer with the norm before, the activation after and the residual around it equals the same in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from pymllm.interfaces import Linear, LinearSpec, WeightMap
from pymllm.layers import FullPrecision, RMSNorm

GPU = pytest.param("cuda", marks=pytest.mark.gpu)
BOUNDS = {torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}
"""Of the result's norm: a rounding to the dtype after each part."""


def layer(widths: tuple[int, ...], terms: int, dtype: torch.dtype, device: str) -> tuple[Linear, Tensor, Tensor]:
    """A layer with random weight and bias, and these two in float64."""
    weights = WeightMap()
    names = tuple(f"part{index}" for index in range(len(widths)))
    spec = LinearSpec(names, terms, widths, bias=True, dtype=dtype, device=torch.device(device))
    made = FullPrecision().linear(spec, weights)
    weight, bias = (torch.randn(sum(widths), terms) * terms**-0.5).to(dtype), torch.randn(sum(widths)).to(dtype)
    for name, rows, offsets in zip(names, weight.split(widths), bias.split(widths)):
        for key, tensor in ((f"{name}.weight", rows), (f"{name}.bias", offsets)):
            binding = weights.get(key)
            assert binding is not None
            binding.load(tensor)
    made.finalize()
    return made, weight.double(), bias.double()


def norm_of(size: int, dtype: torch.dtype, device: str) -> tuple[RMSNorm, Tensor]:
    norm = RMSNorm(size, 1e-5, dtype=dtype, device=torch.device(device))
    norm.weight.copy_(torch.rand(size) + 0.5)
    return norm, norm.weight.double().cpu()


def normed(x: Tensor, weight: Tensor) -> Tensor:
    x = x.double().cpu()
    return x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight


def error(found: Tensor, exact: Tensor) -> float:
    assert found.shape == exact.shape
    return float((found.double().cpu() - exact).norm() / exact.norm())


@pytest.mark.parametrize("device", ["cpu", GPU])
@pytest.mark.parametrize("rows", [1, 2, 5, 16, 33, 64, 65, 128, 129])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_all_verbs(device: str, rows: int, dtype: torch.dtype) -> None:
    torch.manual_seed(rows)
    bound = BOUNDS[dtype]
    qkv, w, b = layer((200, 96, 96), 1032, dtype, device)
    norm, scale = norm_of(1032, dtype, device)
    h = torch.randn(rows, 1032).to(device, dtype)
    kept = h.clone()
    assert error(qkv(h), h.double().cpu() @ w.T + b) < bound
    assert error(qkv.after_norm(h, norm), normed(h, scale) @ w.T + b) < bound
    gate_up, w, b = layer((304, 304), 1032, dtype, device)
    gate, up = (normed(h, scale) @ w.T + b).chunk(2, -1)
    assert error(gate_up.gated(h, norm), gate / (1 + (-gate).exp()) * up) < bound
    assert torch.equal(h, kept), "the residual stream is left as it is"
    wide, w, b = layer((2000,), 1032, dtype, device)
    for approximate in ("none", "tanh"):
        exact = nn.functional.gelu(normed(h, scale) @ w.T + b, approximate=approximate)
        assert error(wide.gelu(h, norm, approximate=approximate), exact) < bound
    assert torch.equal(h, kept), "the residual stream is left as it is"
    down, w, b = layer((1032,), 304, dtype, device)
    x = torch.randn(rows, 304).to(device, dtype)
    assert error(down.onto(x, h), kept.double().cpu() + x.double().cpu() @ w.T + b) < bound


def test_gelu_without_a_norm() -> None:
    wide, w, b = layer((40, 24), 64, torch.float32, "cpu")
    x = torch.randn(3, 64)
    exact = nn.functional.gelu(x.double() @ w.T + b, approximate="tanh")
    assert error(wide.gelu(x, approximate="tanh"), exact) < 1e-6


def test_a_gate_without_a_norm() -> None:
    gate_up, w, b = layer((40, 40), 64, torch.float32, "cpu")
    x = torch.randn(3, 64)
    gate, up = (x.double() @ w.T + b).chunk(2, -1)
    assert error(gate_up.gated(x), gate / (1 + (-gate).exp()) * up) < 1e-6


@pytest.mark.parametrize("device", ["cpu", GPU])
def test_another_kind_of_norm_is_called(device: str) -> None:
    made, w, b = layer((48,), 64, torch.bfloat16, device)
    norm = nn.LayerNorm(64, device=device, dtype=torch.bfloat16).requires_grad_(False)
    h = torch.randn(2, 64).to(device, torch.bfloat16) + 3
    centred = h.double().cpu() - h.double().cpu().mean(-1, keepdim=True)
    exact = centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt() @ w.T + b
    assert error(made.after_norm(h, norm), exact) < 8e-3


class Delta(Linear):
    """A layer with something added between its product and what comes after, as an adapter does."""

    def __init__(self, inner: Linear) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) + 1


@pytest.mark.parametrize("device", ["cpu", GPU])
def test_a_wrapper_of_forward_turns_fusion_off(device: str) -> None:
    inner, w, b = layer((40, 40), 64, torch.bfloat16, device)
    wrapped = Delta(inner)
    assert wrapped.fusions == frozenset()
    norm, scale = norm_of(64, torch.bfloat16, device)
    h = torch.randn(3, 64).to(device, torch.bfloat16)
    product = normed(h, scale) @ w.T + b + 1
    assert error(wrapped.after_norm(h, norm), product) < 8e-3
    gate, up = product.chunk(2, -1)
    assert error(wrapped.gated(h, norm), gate / (1 + (-gate).exp()) * up) < 1.5e-2
    stream = torch.randn(3, 80).to(device, torch.bfloat16)
    exact = stream.double().cpu() + h.double().cpu() @ w.T + b + 1
    assert error(wrapped.onto(h, stream), exact) < 8e-3
