"""A layer's verbs reach the kernels with all that they need: checked on a CPU, through Triton's interpreter."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from pymllm.interfaces import LinearSpec, QuantContext, WeightMap
from pymllm.layers import RMSNorm
from pymllm_quant_w4a16 import products as products_module
from pymllm_quant_w4a16.layout import dequantize
from pymllm_quant_w4a16.linear import W4A16Linear
from pymllm_quant_w4a16.method import W4A16Method
from pymllm_quant_w4a16.plugin import W4A16Options
from pymllm_quant_w4a16.products import KernelProducts, Neighbours
from pymllm_quant_w4a16.tiling import GPU, Tiling

TERMS, WIDTH = 320, 24
DTYPE = torch.float16


@pytest.fixture
def method(interpreted: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch) -> W4A16Method:
    """As on a GPU of two processors."""
    for name in ("dot_triton", "gemv_triton", "dequantize_triton"):
        monkeypatch.setitem(sys.modules, f"pymllm_quant_w4a16.kernels.{name}", interpreted(name))
    monkeypatch.setattr(products_module, "has_kernels", lambda device: True)
    monkeypatch.setattr(products_module, "describe", lambda device: GPU("small", 2, 100_000))
    return W4A16Method(W4A16Options(online=True, group_size=64), QuantContext(torch.device("cpu"), DTYPE, None))


@pytest.fixture
def layer(method: W4A16Method) -> W4A16Linear:
    """A layer of two partitions with biases."""
    weights = WeightMap()
    made = method.linear(LinearSpec(("gate", "up"), TERMS, (WIDTH,) * 2, True, DTYPE, torch.device("cpu")), weights)
    generator = torch.Generator().manual_seed(1)
    for name in weights:
        binding = weights.get(name)
        assert binding is not None
        binding.load(torch.randn(binding.shape, generator=generator) * TERMS**-0.5)
    made.finalize()
    method.finalize()
    assert isinstance(made, W4A16Linear)
    assert made.fusions == {"norm", "activation", "residual"}
    return made


@pytest.mark.parametrize("rows", [0, 1, 3, 20, 300])
def test_verbs_are_their_compositions(layer: W4A16Linear, rows: int) -> None:
    assert layer._weight is not None
    weight = dequantize(layer._weight, slice(None), torch.float64)
    assert layer.bias is not None
    bias = layer.bias.double()
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(rows, TERMS, generator=generator).to(DTYPE)
    stream = torch.randn(rows, 2 * WIDTH, generator=generator).to(DTYPE)
    norm = RMSNorm(TERMS, 1e-2, dtype=DTYPE, device=torch.device("cpu"))
    norm.weight.data = torch.rand(TERMS, generator=generator).add(0.5).to(DTYPE)

    plain = F.linear(x.double(), weight, bias)
    normed = F.linear(F.rms_norm(x.double(), (TERMS,), norm.weight.double(), 1e-2), weight, bias)
    gate, up = normed.chunk(2, -1)
    alone = plain.chunk(2, -1)
    pairs = [
        (layer(x), plain),
        (layer.after_norm(x, norm), normed),
        (layer.gated(x, norm), F.silu(gate) * up),
        (layer.gated(x), F.silu(alone[0]) * alone[1]),
        (layer.onto(x, stream.clone()), stream.double() + plain),
        (layer.onto(x, stream.clone().T.contiguous().T), stream.double() + plain),
        (layer.gelu(x, norm, approximate="tanh"), F.gelu(normed, approximate="tanh")),
    ]
    for y, exact in pairs:
        assert (y.dtype, y.shape) == (DTYPE, exact.shape)
        # Rounding to half precision, of the normed x and of the result, by up to 2^-11 each.
        assert (y.double() - exact).norm() <= 2e-3 * exact.norm()


def test_warming_runs_every_kernel_that_serving_may_need(
    layer: W4A16Linear, method: W4A16Method, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert method.warmup() == []  # nothing ran that says which products there are
    norm = RMSNorm(TERMS, 1e-2, dtype=DTYPE, device=torch.device("cpu"))
    norm.weight.data.fill_(1)
    x = torch.randn(5, TERMS).to(DTYPE)
    before = layer.gated(x, norm)
    ran: list[tuple[Any, int]] = []
    run = KernelProducts.run

    def watched(self: KernelProducts, tiling: Tiling, x: Tensor, bias: Tensor | None, around: Neighbours) -> Tensor:
        ran.append((tiling, len(x)))
        assert (around.operation, bias is not None, around.norm is not None) == ("gated", True, True)
        return run(self, tiling, x, bias, around)

    monkeypatch.setattr(KernelProducts, "run", watched)
    [line] = method.warmup()
    warmed = {(tiling, rows == 1) for tiling, rows in ran}
    assert line == f"kernels of {len(warmed)} kinds of products with 4-bit weights compiled"
    for rows in (1, 2, 7, 16, 30, 64, 100, 200, 300):
        ran.clear()
        layer.gated(torch.zeros(rows, TERMS, dtype=DTYPE), norm)
        assert {(tiling, rows == 1) for tiling, rows in ran} <= warmed
    assert torch.equal(layer.gated(x, norm), before)
