"""Products with their neighbours equal the same in float64: under the interpreter, and on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import pytest
import torch
from torch import Tensor

from pymllm.layers.kernels import LIBRARY, Tiling, product

EPS = 1e-2
INTERPRETED = [
    (Tiling("gemv", 8, 64), (1, 24, 160)),
    (Tiling("gemv", 4, 256), (1, 10, 256)),
    (Tiling("resident", 8, 256, programs=2), (1, 50, 160)),
    (Tiling("dot", 16, 32), (3, 40, 128)),
    (Tiling("dot", 16, 32, split=3), (16, 16, 256)),
    (Tiling("dot", 32, 64, split=2), (19, 40, 160)),
]
"""With rows, outputs and terms: none of them need fill a block."""
PARTS = [(), ("norm",), ("gate",), ("residual",), ("norm", "gate", "bias"), ("bias", "residual"), ("norm", "residual")]


class Case:
    """Inputs of a product, and what it must give in float64."""

    def __init__(
        self, size: tuple[int, int, int], parts: tuple[str, ...], dtype: torch.dtype, device: str = "cpu"
    ) -> None:
        rows, width, terms = size
        generator = torch.Generator().manual_seed(7)

        def random(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator).to(device, dtype)

        self.gated = "gate" in parts
        outputs = width * (2 if self.gated else 1)
        self.x, self.weight = random(rows, terms), random(outputs, terms) * terms**-0.5
        self.norm = random(terms).abs() + 0.5 if "norm" in parts else None
        self.bias = random(outputs) if "bias" in parts else None
        self.residual = random(rows, width) if "residual" in parts else None
        self.counters = torch.zeros(-(-outputs // 16), dtype=torch.int32, device=device)
        self.exact = self._exact()

    def _exact(self) -> Tensor:
        x = self.x.double()
        if self.norm is not None:
            x = x / (x.square().mean(-1, keepdim=True) + EPS).sqrt() * self.norm.double()
        y = x @ self.weight.double().T
        if self.bias is not None:
            y = y + self.bias.double()
        if self.gated:
            gate, up = y.chunk(2, -1)
            y = gate / (1 + (-gate).exp()) * up
        return y if self.residual is None else y + self.residual.double()

    def error(self, y: Tensor) -> float:
        return float((y.double() - self.exact).norm() / self.exact.norm())


@pytest.mark.parametrize("parts", PARTS, ids="+".join)
@pytest.mark.parametrize("tiling, size", INTERPRETED, ids=str)
def test_interpreted_kernels_are_exact(
    interpreted: Callable[[str], ModuleType], tiling: Tiling, size: tuple[int, int, int], parts: tuple[str, ...]
) -> None:
    if tiling.kernel == "dot" and "norm" in parts:
        pytest.skip("this kernel takes an x that is normed already")
    case = Case(size, parts, torch.float32)
    out = torch.full(case.exact.shape, float("nan"))
    shared = {"bias": case.bias, "residual": case.residual, "gated": case.gated}
    if tiling.kernel == "dot":
        kernels = interpreted("dot_triton")
        kernels.launch_dot(tiling, case.x, case.weight, out, counters=case.counters, **shared)
    else:
        kernels = interpreted("gemv_triton")
        kernels.launch_gemv(tiling, case.x, case.weight, out, norm_weight=case.norm, eps=EPS, **shared)
    assert case.error(out) < 1e-5
    assert not case.counters.any()


@pytest.mark.parametrize("parts", PARTS, ids="+".join)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_library_path_is_exact(dtype: torch.dtype, parts: tuple[str, ...]) -> None:
    case = Case((3, 40, 128), parts, dtype)
    error = case.error(run(case, LIBRARY))
    # bfloat16 rounds by up to 2^-9, here after the norm's two steps, the product, the activation and each sum.
    assert error < (1e-6 if dtype == torch.float32 else 6e-3)


ON_A_GPU = [
    (Tiling("gemv", 2, 1024, 4), (1, 301, 1160)),
    (Tiling("gemv", 4, 512, 2), (1, 96, 3072)),
    (Tiling("resident", 2, 4096, 8, programs=50), (1, 301, 2560)),
    (Tiling("dot", 64, 128, 4, 4), (7, 344, 1160)),
    (Tiling("dot", 64, 64, 4, 6, split=3), (16, 1001, 1024)),
    (Tiling("dot", 64, 256, 4, 3, split=2), (33, 96, 2560)),
]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("tiling, size", ON_A_GPU, ids=str)
def test_kernels_on_a_gpu(tiling: Tiling, size: tuple[int, int, int], dtype: torch.dtype) -> None:
    for parts in [(), ("norm", "gate", "bias"), ("bias", "residual")]:
        case = Case(size, parts, dtype, "cuda")
        first = run(case, tiling)
        # The result is rounded by up to 2^-9 or 2^-12, and x after a norm, before a dot, twice.
        assert case.error(first) < (6e-3 if dtype == torch.bfloat16 else 8e-4), parts
        assert torch.equal(first, run(case, tiling)), "a product does not vary from run to run"
        assert not case.counters.any()


@pytest.mark.gpu
@pytest.mark.parametrize("tiling", [Tiling("gemv", 4, 256, 1), Tiling("dot", 64, 128, 4, 3, split=2), LIBRARY], ids=str)
def test_a_chain_of_products_in_a_graph_keeps_its_order(tiling: Tiling) -> None:
    """Each kernel may start before the one ahead has ended: what it reads must still be the finished result."""
    weights = torch.randn(40, 512, 512, device="cuda", dtype=torch.bfloat16) * 512**-0.5
    norm = torch.ones(512, device="cuda", dtype=torch.bfloat16)
    counters = torch.zeros(32, dtype=torch.int32, device="cuda")
    h = torch.randn(1, 512, device="cuda", dtype=torch.bfloat16)

    def chain(h: Tensor) -> Tensor:
        for weight in weights:
            a = product(tiling, h, weight, norm_weight=norm, eps=1e-6, counters=counters)
            h = product(tiling, a, weight, residual=h.clone(), counters=counters)
        return h

    eager = chain(h)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = chain(h)
    for _ in range(20):
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(out, eager)
    exact = h.cpu().double()
    for weight in weights.cpu().double():
        a = exact / (exact.square().mean(-1, keepdim=True) + 1e-6).sqrt() @ weight.T
        exact = exact + a @ weight.T
    assert float((eager.cpu().double() - exact).norm() / exact.norm()) < 3e-2  # eighty roundings to bfloat16


def run(case: Case, tiling: Tiling) -> Tensor:
    """The case through the public function."""
    residual = None if case.residual is None else case.residual.clone()
    return product(
        tiling,
        case.x,
        case.weight,
        norm_weight=case.norm,
        eps=EPS,
        bias=case.bias,
        residual=residual,
        gated=case.gated,
        counters=case.counters,
    )
