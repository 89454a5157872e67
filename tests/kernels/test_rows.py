"""Norms and silu(gate) * up equal float64, under the interpreter and on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import pytest
import torch
from torch import Tensor

from pymllm.layers.kernels import layer_norm, rms_norm, silu_and_mul


def exact_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    x = x.double()
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * weight.double()


def exact_layer_norm(x: Tensor, weight: Tensor, bias: Tensor, offset: Tensor | None, eps: float) -> Tensor:
    x = x.double() + (0 if offset is None else offset.double())
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + eps).sqrt() * weight.double() + bias.double()


def exact_silu(gate_up: Tensor) -> Tensor:
    gate, up = gate_up.double().chunk(2, -1)
    return gate / (1 + (-gate).exp()) * up


@pytest.mark.parametrize("shape", [(5, 3, 96), (1, 40), (9, 128), (2, 1500)], ids=str)
def test_the_interpreted_norm(interpreted: Callable[[str], ModuleType], shape: tuple[int, ...]) -> None:
    x, weight = torch.randn(shape), torch.rand(shape[-1])
    out = torch.full_like(x, float("nan"))
    interpreted("rows_triton").launch_rms_norm(x, weight, out, 1e-3)
    torch.testing.assert_close(out.double(), exact_norm(x, weight, 1e-3), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("shape", [(5, 3, 96), (9, 128), (2, 1152)], ids=str)
@pytest.mark.parametrize("lacking", [False, True])
def test_the_interpreted_layer_norm(
    interpreted: Callable[[str], ModuleType], shape: tuple[int, ...], lacking: bool
) -> None:
    x, weight, bias = torch.randn(shape) + 3, torch.rand(shape[-1]), torch.randn(shape[-1])
    offset = 2 * torch.randn(shape[-1]) if lacking else None
    out = torch.full_like(x, float("nan"))
    interpreted("rows_triton").launch_layer_norm(x, weight, bias, offset, out, 1e-3)
    expected = exact_layer_norm(x, weight, bias, offset, 1e-3)
    torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(layer_norm(x, weight, bias, 1e-3, offset).double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shape", [(1, 100), (5, 3000)], ids=str)
def test_the_interpreted_activation(interpreted: Callable[[str], ModuleType], shape: tuple[int, int]) -> None:
    gate_up = 4 * torch.randn(shape)
    out = torch.full((shape[0], shape[1] // 2), float("nan"))
    interpreted("rows_triton").launch_silu_and_mul(gate_up, out)
    torch.testing.assert_close(out.double(), exact_silu(gate_up), rtol=1e-5, atol=1e-6)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("rows", [1, 33])
def test_on_a_gpu(rows: int, dtype: torch.dtype) -> None:
    bound = {torch.float32: 1e-6, torch.float16: 8e-4, torch.bfloat16: 6e-3}[dtype]
    for size in (96, 1024, 2560, 9728):
        x, weight = torch.randn(rows, size, device="cuda", dtype=dtype), torch.rand(size, device="cuda", dtype=dtype)
        bias, offset = torch.randn_like(weight), 2 * torch.randn(size, device="cuda")
        for found, exact in [
            (layer_norm(x, weight, bias, 1e-6), exact_layer_norm(x, weight, bias, None, 1e-6)),
            (layer_norm(x, weight, bias, 1e-6, offset), exact_layer_norm(x, weight, bias, offset, 1e-6)),
            (rms_norm(x, weight, 1e-6), exact_norm(x, weight, 1e-6)),
            (silu_and_mul(x), exact_silu(x)),
        ]:
            assert float((found.double() - exact).norm() / exact.norm()) < bound
