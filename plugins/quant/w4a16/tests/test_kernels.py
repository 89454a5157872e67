"""Products with 4-bit weights equal the same in float64, under Triton's interpreter, and on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from pymllm.layers import RMSNorm
from pymllm_quant_w4a16.layout import Weight4, pack
from pymllm_quant_w4a16.products import KernelProducts, Neighbours, Scratch, describe
from pymllm_quant_w4a16.tiling import GPU, LIBRARY, Product, Tiling, choose, rule

EPS = 1e-2


class Case:
    """A weight, what it is multiplied with, and the result in float64. size: rows, outputs, terms; parts: among "norm",
    "gate", "bias", "residual"; group 0: one scale a row; spread: of the scales, in powers of ten."""

    def __init__(
        self,
        size: tuple[int, int, int],
        group: int,
        parts: tuple[str, ...] = (),
        *,
        symmetric: bool = False,
        spread: float = 0.5,
        dtype: torch.dtype = torch.float32,
        device: str = "cpu",
    ) -> None:
        rows, width, terms = size
        generator = torch.Generator(device).manual_seed(11)
        self.gated = "gate" in parts
        outputs = width * (2 if self.gated else 1)
        groups = terms // group if group else 1

        def tensor(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator, device=device).to(dtype)

        def integers(end: int, *shape: int) -> Tensor:
            return torch.randint(end, shape, generator=generator, device=device, dtype=torch.uint8)

        codes = integers(16, outputs, terms)
        zeros = torch.full_like(codes[:, :groups], 8) if symmetric else integers(17, outputs, groups)
        exponents = torch.rand(outputs, groups, generator=generator, device=device) * 2 - 1
        scales = (10.0 ** (exponents * spread) * 0.2 * terms**-0.5).to(dtype)
        self.weight = Weight4.of(pack(codes), scales, None if symmetric else zeros, terms, terms // groups)
        wide = (codes.double().unflatten(1, (groups, -1)) - zeros.double().unsqueeze(2)) * scales.double().unsqueeze(2)
        self.w = wide.flatten(1)
        self.x = tensor(rows, terms)
        self.norm = tensor(terms).abs() + 0.5 if "norm" in parts else None
        self.bias = tensor(outputs) if "bias" in parts else None
        self.residual = tensor(rows, width) if "residual" in parts else None
        self.counters = torch.zeros(-(-outputs // 16) + 16, dtype=torch.int32, device=device)
        self.exact = self._exact()

    def _exact(self) -> Tensor:
        x = self.x.double()
        if self.norm is not None:
            x = x / (x.square().mean(-1, keepdim=True) + EPS).sqrt() * self.norm.double()
        y = x @ self.w.T
        if self.bias is not None:
            y = y + self.bias.double()
        if self.gated:
            gate, up = y.chunk(2, -1)
            y = gate / (1 + (-gate).exp()) * up
        return y if self.residual is None else y + self.residual.double()

    def error(self, y: Tensor) -> float:
        """Of all outputs together, as a share of them."""
        return float((y.double() - self.exact).norm() / self.exact.norm())

    def largest_error(self, y: Tensor) -> float:
        """Of a product alone: each output's error as a share of the size that a sum of its terms, of random signs, has;
        so a small output beside large ones counts as much."""
        return float(((y.double() - self.exact).abs() / (self.x.double().square() @ self.w.square().T).sqrt()).max())

    def launch(self, kernels: ModuleType, tiling: Tiling, **options: Any) -> Tensor:
        """The product by a kernel alone; the residual is overwritten."""
        out = torch.full_like(self.exact, float("nan"), dtype=self.x.dtype)
        residual = None if self.residual is None else self.residual.clone()
        if tiling.kernel == "dot":
            assert self.norm is None, "a kernel of its own norms more than one row"
            options["counters"] = self.counters
        else:
            options |= {"norm_weight": self.norm, "eps": EPS}
        getattr(kernels, f"launch_{tiling.kernel}")(
            tiling,
            self.x,
            self.weight,
            out if residual is None else residual,
            bias=self.bias,
            residual=residual,
            gated=self.gated,
            **options,
        )
        assert not self.counters.any()
        return out if residual is None else residual


SMALL = Tiling("dot", 8, 16, 1, 1)
ONE_ROW = Tiling("gemv", block_n=8, warps=2, chunk=1)
SIZES = [
    (SMALL, (1, 24, 256)),
    (SMALL, (5, 21, 320)),
    (Tiling("dot", 16, 32, 2, 1, split=2), (16, 40, 768)),
    (Tiling("dot", 16, 32, 2, 1, split=3), (37, 33, 640)),
    (Tiling("dot", 16, 32, 2, 1, whole=True), (16, 40, 768)),
    (Tiling("dot", 64, 32, 2, 1, split=2, whole=True), (64, 17, 832)),
    (ONE_ROW, (1, 24, 512)),
    (Tiling("gemv", block_n=4, warps=4, chunk=2), (1, 21, 832)),
    (Tiling("gemv", block_n=16, warps=8, chunk=4), (1, 40, 1280)),
    (Tiling("gemv", block_n=4, warps=4, chunk=1, stages=2, programs=3), (1, 40, 1088)),
    (Tiling("dot", 16, 32, 2, 1, terms=128, step=128), (5, 40, 640)),
    (Tiling("dot", 16, 32, 2, 1, split=2, whole=True, terms=256), (16, 40, 768)),
]
"""With rows, outputs and terms: none of them need fill a block."""


@pytest.mark.parametrize("group", [32, 64, 128, 0])
@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("tiling, size", SIZES, ids=str)
def test_interpreted_products_are_exact(
    interpreted: Callable[[str], ModuleType], tiling: Tiling, size: tuple[int, int, int], symmetric: bool, group: int
) -> None:
    if group == 128 and size[2] % 128:
        size = (*size[:2], size[2] + 64)
    case = Case(size, group, symmetric=symmetric)
    assert case.largest_error(case.launch(interpreted(f"{tiling.kernel}_triton"), tiling)) < 2e-5


@pytest.mark.parametrize(
    "parts, rows",
    [
        (("gate",), 3),
        (("residual",), 19),
        (("gate", "bias"), 1),
        (("bias", "residual"), 3),
    ],
)
@pytest.mark.parametrize("split", [1, 3])
def test_interpreted_neighbours_are_exact(
    interpreted: Callable[[str], ModuleType], parts: tuple[str, ...], rows: int, split: int
) -> None:
    case = Case((rows, 23, 832), 64, parts)
    assert case.error(case.launch(interpreted("dot_triton"), Tiling("dot", 8, 16, split=split))) < 2e-5


@pytest.mark.parametrize("parts", [("norm",), ("gate",), ("residual",), ("norm", "gate", "bias"), ("bias", "residual")])
@pytest.mark.parametrize("terms", [832, 1024])
def test_interpreted_neighbours_of_one_row_are_exact(
    interpreted: Callable[[str], ModuleType], parts: tuple[str, ...], terms: int
) -> None:
    case = Case((1, 23, terms), 64, parts)
    assert case.error(case.launch(interpreted("gemv_triton"), Tiling("gemv", block_n=4, warps=4, chunk=2))) < 2e-5


@pytest.mark.parametrize("tiling", [SMALL, ONE_ROW], ids=str)
def test_interpreted_scales_may_differ_by_twelve_powers_of_ten(
    interpreted: Callable[[str], ModuleType], tiling: Tiling
) -> None:
    case = Case((3 if tiling.kernel == "dot" else 1, 24, 512), 32, spread=6)
    assert case.largest_error(case.launch(interpreted(f"{tiling.kernel}_triton"), tiling)) < 2e-5


WHOLE = Tiling("dot", 8, 16, 1, 1, whole=True)


def test_interpreted_scaled_weights_are_rounded_once(interpreted: Callable[[str], ModuleType]) -> None:
    """As a checkpoint in half precision has them: the kernel then makes exactly what those weights make."""
    case = Case((4, 32, 512), 32, dtype=torch.float16)
    case.w = case.w.half().double()
    case.exact = case._exact()
    assert case.largest_error(case.launch(interpreted("dot_triton"), WHOLE)) < 2.0**-9


@pytest.mark.parametrize("tiling", [SMALL, ONE_ROW], ids=str)
def test_interpreted_numbers_of_16_bits_are_made_exactly(
    interpreted: Callable[[str], ModuleType], tiling: Tiling
) -> None:
    """Half precision goes through the mantissa of 1024; all codes and zero points occur."""
    case = Case((4 if tiling.kernel == "dot" else 1, 32, 512), 32, dtype=torch.float16)
    assert case.weight.inside, "16-bit scales have room for zero points"
    # The result alone is rounded, by up to 2^-11 of it, and is seldom more than four times the size of its terms' sum.
    assert case.largest_error(case.launch(interpreted(f"{tiling.kernel}_triton"), tiling)) < 2.0**-9


@pytest.mark.parametrize("group", [32, 64, 128, 0])
@pytest.mark.parametrize("symmetric", [False, True])
def test_interpreted_weights_are_turned_back(
    interpreted: Callable[[str], ModuleType], group: int, symmetric: bool
) -> None:
    case = Case((1, 19, 384), group, symmetric=symmetric, spread=3)
    out = torch.full((19, 384), float("nan"))
    interpreted("dequantize_triton").launch_dequantize(case.weight, out)
    torch.testing.assert_close(out.double(), case.w, rtol=1e-6, atol=0)


# On a GPU

BF16, FP16 = torch.bfloat16, torch.float16
ON_A_GPU = [
    (Tiling("dot", 8, 32, 2, 3), (1, 300, 2560), 128, False, BF16),
    (Tiling("dot", 8, 32, 2, 3), (1, 300, 2560), 64, True, FP16),
    (Tiling("dot", 8, 64, 4, 4, split=4), (1, 344, 4096), 128, True, BF16),
    (Tiling("dot", 8, 64, 2, 2, split=2), (3, 344, 2560), 0, False, BF16),
    (Tiling("dot", 8, 16, 1, 3, split=8), (7, 1001, 9728), 128, False, FP16),
    (Tiling("dot", 16, 64, 4, 3, split=3), (13, 96, 1152), 32, False, BF16),
    (Tiling("dot", 16, 32, 2, 3), (16, 96, 576), 32, True, FP16),
    (Tiling("dot", 64, 64, 4, 3), (64, 300, 2560), 64, False, BF16),
    (Tiling("dot", 128, 128, 8, 2), (301, 520, 1152), 128, False, BF16),
    (Tiling("dot", 64, 64, 4, 3, split=3, whole=True), (128, 520, 2560), 128, False, BF16),
    (Tiling("dot", 128, 128, 8, 2, split=2, whole=True), (130, 520, 1152), 32, False, FP16),
    (Tiling("dot", 16, 32, 2, 4, split=2, whole=True), (16, 300, 9728), 128, True, BF16),
    (Tiling("gemv", block_n=16, warps=4, chunk=2), (1, 300, 2560), 128, True, BF16),
    (Tiling("gemv", block_n=16, warps=4, chunk=2), (1, 301, 2560), 64, False, FP16),
    (Tiling("gemv", block_n=8, warps=8, chunk=4), (1, 344, 9728), 32, False, BF16),
    (Tiling("gemv", block_n=4, warps=2, chunk=1), (1, 1001, 1152), 0, False, BF16),
    (Tiling("gemv", block_n=32, warps=4, chunk=2), (1, 300, 4096), 0, True, FP16),
    (Tiling("dot", 128, 128, 8, 2), (130, 520, 320), 0, True, FP16),
    (Tiling("dot", 64, 64, 4, 3, split=2, terms=128), (100, 520, 2560), 128, True, BF16),
    (Tiling("dot", 64, 128, 8, 2, whole=True, terms=64, registers=128), (128, 520, 2560), 64, False, BF16),
    (Tiling("dot", 128, 128, 8, 2, split=3, whole=True, terms=256), (130, 520, 4096), 32, False, FP16),
    (Tiling("dot", 128, 128, 8, 2, terms=32, step=128, registers=128), (130, 520, 2560), 128, True, BF16),
    (Tiling("gemv", block_n=4, warps=4, chunk=16, stages=1), (1, 1001, 4096), 128, True, BF16),
    (Tiling("gemv", block_n=4, warps=4, chunk=16, stages=2), (1, 301, 9728), 64, False, FP16),
    (Tiling("gemv", block_n=4, warps=4, chunk=4, stages=3, programs=40), (1, 1001, 2560), 128, False, BF16),
    *(
        (LIBRARY, (rows, 300, 2560), group, group == 64, dtype)
        for rows in (1, 513)
        for group in (32, 64, 0)
        for dtype in (BF16, FP16)
    ),
]
"""With rows, outputs and terms, group, whether symmetric, and the activations' type."""
BOUNDS = {torch.bfloat16: 1e-2, torch.float16: 2e-3}
"""x after a norm is rounded, and the result, by up to 2^-8 or 2^-11 each; the library's weights are, too."""


def products(case: Case) -> KernelProducts:
    """The case's weight as a layer has it."""
    return KernelProducts(case.weight, Scratch(case.x.device, case.x.dtype), describe(case.x.device))


def neighbours(case: Case) -> Neighbours:
    """Of the case's product."""
    norm = None
    if case.norm is not None:
        norm = RMSNorm(len(case.norm), EPS, dtype=case.x.dtype, device=case.x.device)
        norm.weight.data = case.norm
    return Neighbours(norm, case.gated, None if case.residual is None else case.residual.clone())


@pytest.mark.gpu
@pytest.mark.parametrize("tiling, size, group, symmetric, dtype", ON_A_GPU, ids=str)
def test_products_on_a_gpu(
    tiling: Tiling, size: tuple[int, int, int], group: int, symmetric: bool, dtype: torch.dtype
) -> None:
    for parts in [(), ("norm", "gate", "bias"), ("bias", "residual")]:
        case = Case(size, group, parts, symmetric=symmetric, dtype=dtype, device="cuda")
        layer = products(case)
        first = layer.run(tiling, case.x, case.bias, neighbours(case))
        assert case.error(first) < BOUNDS[dtype], parts
        assert torch.equal(first, layer.run(tiling, case.x, case.bias, neighbours(case))), "a product does not vary"


@pytest.mark.gpu
def test_scales_of_extreme_range_on_a_gpu() -> None:
    case = Case((8, 300, 2560), 32, spread=6, dtype=torch.bfloat16, device="cuda")
    # The result is rounded by up to 2^-8 of it, and is seldom more than four times the size of its terms' sum.
    assert case.largest_error(products(case)(case.x, None, Neighbours())) < 2.0**-6


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [1, 2, 3, 8, 9, 16, 17, 32, 33, 64, 65, 128, 129, 256, 257, 1000, 8192])
def test_chosen_tilings_on_a_gpu(rows: int) -> None:
    """The layers of a real model; of many rows, a part of the outputs."""
    share = 1 if rows <= 256 else 8
    for width, terms, parts in [(6144, 2560, ("norm",)), (9728, 2560, ("norm", "gate")), (2560, 9728, ("residual",))]:
        case = Case((rows, width // share, terms), 128, parts, dtype=torch.bfloat16, device="cuda")
        y = products(case)(case.x, case.bias, neighbours(case))
        assert case.error(y) < BOUNDS[torch.bfloat16], parts


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
def test_the_instructions_make_what_plain_code_makes(dtype: torch.dtype) -> None:
    from pymllm_quant_w4a16.kernels import dot_triton

    case = Case((8, 128, 1024), 32, dtype=dtype, device="cuda")
    plain, instructions = (case.launch(dot_triton, Tiling("dot", 8, 32), ptx=ptx) for ptx in (False, True))
    assert torch.equal(plain, instructions)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
def test_the_instructions_of_one_row_make_what_plain_code_makes(dtype: torch.dtype) -> None:
    from pymllm_quant_w4a16.kernels import gemv_triton

    case = Case((1, 128, 1024), 32, ("norm",), dtype=dtype, device="cuda")
    plain, instructions = (case.launch(gemv_triton, Tiling("gemv", block_n=8, warps=4), ptx=ptx) for ptx in (0, 1))
    assert torch.equal(plain, instructions)


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [1, 4, 32, 300])
def test_a_chain_of_products_in_a_graph_keeps_its_order(rows: int) -> None:
    """Each kernel may start before the one ahead has ended: what it reads must still be the finished result."""
    case = Case((rows, 512, 512), 128, ("norm",), dtype=torch.bfloat16, device="cuda")
    layers = [products(case) for _ in range(20)]
    norm = neighbours(case).norm

    def chain(h: Tensor) -> Tensor:
        for layer in layers:
            a = layer(h, None, Neighbours(norm))
            h = layer(a, None, Neighbours(residual=h.clone()))
        return h

    eager = chain(case.x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = chain(case.x)
    for _ in range(20):
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(out, eager)
    assert eager.isfinite().all()


@pytest.mark.parametrize("gpu", [GPU("Orin", 16, 163 * 1024), GPU("H200", 132, 227 * 1024)], ids=str)
def test_every_rule_can_be_launched(gpu: GPU) -> None:
    """What the launcher asserts, and what tensor cores need, holds of each choice."""
    for operation in ("plain", "norm", "gated", "onto"):
        for height, terms in [(6144, 2560), (19456, 2560), (2560, 9728), (96, 64), (576, 1536)]:
            for rows in (1, 2, 9, 16, 17, 64, 65, 200, 256, 257, 4096):
                product = Product(operation, height, terms)  # type: ignore[arg-type]
                tiling = choose(product, rows, gpu, {})
                assert tiling == rule(product, rows, gpu)
                if tiling.kernel == "dot":
                    blocks = -(-height // tiling.block_n) * -(-rows // tiling.block_m)
                    assert tiling.split == 1 or blocks <= -(-height // 16) + 16
                    assert tiling.block_m >= 8
                    assert tiling.stages * (tiling.block_n * 128 + tiling.block_m * 512) <= gpu.shared_memory
                if tiling.kernel == "gemv":
                    assert rows == 1
                    at = "what threads share would go through shared memory"
                    assert tiling.chunk < tiling.warps or tiling.chunk == 4 * tiling.warps, at
