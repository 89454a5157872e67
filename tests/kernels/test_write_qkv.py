"""q, k and v reach their places, normed and rotated as in float64: the twin, the interpreted kernel, and on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType

import pytest
import torch
from torch import Tensor

from pymllm.layers.kernels import write_qkv
from pymllm.layers.kernels.codes import code_dtype, code_width, dequantize

Q_EPS, K_EPS, PAGE = 1e-3, 2e-2, 4
FP8 = torch.float8_e4m3fn


@dataclass(frozen=True)
class Shape:
    """rotary: rotated components, 0 for none."""

    tokens: int
    heads: int
    kv_heads: int
    size: int
    rotary: int
    q_norm: bool = False
    k_norm: bool = False
    heads_first: bool = False


SHAPES = [
    Shape(3, 4, 2, 128, 128, q_norm=True, k_norm=True),
    Shape(5, 2, 2, 72, 72, k_norm=True, heads_first=True),
    Shape(2, 3, 1, 80, 40, heads_first=True),
    Shape(4, 3, 3, 96, 96, q_norm=True),
    Shape(1, 2, 1, 64, 0, q_norm=True, k_norm=True),
    Shape(1, 1, 1, 256, 64, q_norm=True, k_norm=True),
    Shape(2, 2, 1, 64, 0),
]


class Case:
    """Inputs, an empty cache, and what must be written, in float64."""

    def __init__(
        self, shape: Shape, dtype: torch.dtype, device: str = "cpu", cache_dtype: torch.dtype | None = None
    ) -> None:
        generator = torch.Generator().manual_seed(11)
        heads, kv_heads, size = shape.heads, shape.kv_heads, shape.size
        total = shape.tokens + 2 * PAGE

        def random(*sizes: int) -> Tensor:
            return torch.randn(sizes, generator=generator)

        self.qkv = random(shape.tokens, (heads + 2 * kv_heads) * size).to(device, dtype)
        self.slots = torch.randperm(total, generator=generator)[: shape.tokens].to(device)
        self.positions = torch.randint(0, 50, (shape.tokens,), generator=generator).to(device)
        self.q_weight = (random(size).abs() + 0.5).to(device, dtype) if shape.q_norm else None
        self.k_weight = (random(size).abs() + 0.5).to(device, dtype) if shape.k_norm else None
        self.angles = random(50, shape.rotary // 2)
        self.cos_sin = torch.cat([self.angles.cos(), self.angles.sin()], -1).to(device) if shape.rotary else None
        pages = -(-total // PAGE)
        layout = (pages, 2, kv_heads, PAGE, size) if shape.heads_first else (pages, 2, PAGE, kv_heads, size)
        self.cache = torch.full(layout, float("nan"), dtype=cache_dtype or dtype, device=device)
        views = [part.transpose(1, 2) if shape.heads_first else part for part in self.cache.unbind(1)]
        self.k_cache, self.v_cache = views
        self.q = torch.full((shape.tokens, heads, size), float("nan"), dtype=dtype, device=device)
        self.shape = shape

    def arguments(self) -> tuple[Tensor | float | None, ...]:
        return (
            self.qkv,
            self.q,
            self.k_cache,
            self.v_cache,
            self.slots,
            self.positions,
            self.cos_sin,
            self.q_weight,
            self.k_weight,
            Q_EPS,
            K_EPS,
        )

    def check(self, bound: float, kv_bound: float | None = None) -> None:
        """Errors relative to the norm; kv_bound: of what is in the cache, if that is rounded more."""
        shape = self.shape
        parts = self.qkv.cpu().double().view(shape.tokens, -1, shape.size)
        q, k, v = parts.split([shape.heads, shape.kv_heads, shape.kv_heads], 1)
        page, offset = self.slots.cpu() // PAGE, self.slots.cpu() % PAGE
        for found, exact, most in [
            (self.q.cpu(), self._exact(q, self.q_weight, Q_EPS), bound),
            (self.k_cache.cpu().double()[page, offset], self._exact(k, self.k_weight, K_EPS), kv_bound or bound),
            (self.v_cache.cpu().double()[page, offset], v, kv_bound or bound),
        ]:
            assert float((found.double() - exact).norm() / exact.norm()) < most
        written = self.cache.double().isfinite().sum()
        assert int(written) == 2 * k.numel(), "other places of the cache were written"

    def _exact(self, x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
        if weight is not None:
            x = x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * weight.cpu().double()
        half = self.shape.rotary // 2
        turned = torch.view_as_complex(torch.stack([x[..., :half], x[..., half : 2 * half]], -1).contiguous())
        angles = self.angles.double()[self.positions.cpu()][:, None]
        turned = turned * torch.polar(torch.ones_like(angles), angles)
        return torch.cat([turned.real, turned.imag, x[..., 2 * half :]], -1)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_twin(shape: Shape, dtype: torch.dtype) -> None:
    case = Case(shape, dtype)
    assert write_qkv(*case.arguments()) is case.q  # type: ignore[arg-type]
    case.check(1e-6 if dtype == torch.float32 else 3e-3)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_interpreted_kernel(interpreted: Callable[[str], ModuleType], shape: Shape) -> None:
    case = Case(shape, torch.float32)
    interpreted("qkv_triton").launch(*case.arguments())
    case.check(1e-6)


FP8_ERROR = 0.036
"""Three bits of mantissa: steps of 1/8 to 1/16 of a number, so the error is 1/16 to 1/8 of it / sqrt(12)."""


@pytest.mark.parametrize("shape", SHAPES[:3], ids=str)
def test_the_twin_with_an_8_bit_cache(shape: Shape) -> None:
    case = Case(shape, torch.float32, cache_dtype=FP8)
    write_qkv(*case.arguments())  # type: ignore[arg-type]
    case.check(1e-6, FP8_ERROR)


@pytest.mark.parametrize("shape", SHAPES[:3], ids=str)
def test_the_interpreted_kernel_with_an_8_bit_cache(interpreted: Callable[[str], ModuleType], shape: Shape) -> None:
    case, twin = (Case(shape, torch.float32, cache_dtype=FP8) for _ in range(2))
    interpreted("qkv_triton").launch(*case.arguments())
    case.check(1e-6, FP8_ERROR)
    write_qkv(*twin.arguments())  # type: ignore[arg-type]
    assert torch.equal(case.cache.view(torch.uint8), twin.cache.view(torch.uint8))


def check_numbers_beyond_the_range(run: Callable[..., object], device: str = "cpu") -> None:
    """What float8_e4m3fn cannot hold is written as its largest number, and NaN as NaN."""
    case = Case(Shape(2, 1, 1, 64, 0), torch.float32, device, FP8)
    case.qkv[0, 64:70] = torch.tensor([447.0, 449.0, 1e9, -1e9, float("inf"), float("nan")])
    case.qkv[0, 128:131] = torch.tensor([-1e30, float("-inf"), 464.0])
    run(*case.arguments())
    page, offset = int(case.slots[0]) // PAGE, int(case.slots[0]) % PAGE
    k, v = case.k_cache[page, offset, 0].float().cpu(), case.v_cache[page, offset, 0].float().cpu()
    assert k[:5].tolist() == [448.0, 448.0, 448.0, -448.0, 448.0]
    assert k[5].isnan()
    assert v[:3].tolist() == [-448.0, -448.0, 448.0]


@pytest.mark.filterwarnings("ignore:invalid value encountered")  # of the interpreter: inf x 0
def test_numbers_beyond_the_range_of_an_8_bit_cache(interpreted: Callable[[str], ModuleType]) -> None:
    check_numbers_beyond_the_range(write_qkv)
    check_numbers_beyond_the_range(interpreted("qkv_triton").launch)


class Codes(Case):
    """The same with a cache of codes."""

    def __init__(self, shape: Shape, dtype: torch.dtype, bits: int, device: str = "cpu") -> None:
        super().__init__(shape, dtype, device)
        codes = (*self.cache.shape[:-1], code_width(shape.size, bits))
        self.cache = torch.zeros(codes, dtype=code_dtype(bits), device=device)
        self.scales = torch.full(codes[:-1], -1, dtype=torch.int32, device=device)  # two NaN
        views = [part.transpose(1, 2) if shape.heads_first else part for part in self.cache.unbind(1)]
        self.k_cache, self.v_cache = views
        parts = [part.transpose(1, 2) if shape.heads_first else part for part in self.scales.unbind(1)]
        self.k_scales, self.v_scales = parts
        self.bits = bits

    def arguments(self) -> tuple[Tensor | float | None, ...]:
        return (*super().arguments(), self.k_scales, self.v_scales)

    def check_codes(self, bound: float) -> None:
        """Every number is within half a step of the exact one, and what float32 and ``bound`` (of the largest number)
        add; nothing else was written."""
        self.k_cache, self.v_cache = (
            dequantize(codes.contiguous(), scales.contiguous(), torch.empty(*codes.shape[:-1], self.shape.size))
            for codes, scales in ((self.k_cache.cpu(), self.k_scales.cpu()), (self.v_cache.cpu(), self.v_scales.cpu()))
        )
        shape, page, offset = self.shape, self.slots.cpu() // PAGE, self.slots.cpu() % PAGE
        parts = self.qkv.cpu().double().view(shape.tokens, -1, shape.size)
        _, k, v = parts.split([shape.heads, shape.kv_heads, shape.kv_heads], 1)
        for cache, exact in ((self.k_cache, self._exact(k, self.k_weight, K_EPS)), (self.v_cache, v)):
            step = (exact.amax(-1, keepdim=True) - exact.amin(-1, keepdim=True)) / (2**self.bits - 1)
            limit = (0.5 + 2.0**self.bits * 2**-11) * step + (2**-11 + bound) * exact.abs().amax(-1, keepdim=True)
            assert ((cache.double()[page, offset] - exact).abs() <= limit).all()
        written = (self.scales != -1).sum()
        assert int(written) == 2 * k.shape[0] * k.shape[1], "other places of the cache were written"


OF_CODES = [(8, shape) for shape in SHAPES] + [(4, shape) for shape in SHAPES if shape.rotary in (0, shape.size)]


@pytest.mark.parametrize(("bits", "shape"), OF_CODES, ids=str)
def test_codes_of_the_twin_and_of_the_interpreted_kernel(
    interpreted: Callable[[str], ModuleType], bits: int, shape: Shape
) -> None:
    twin, case = (Codes(shape, torch.float32, bits) for _ in range(2))
    write_qkv(*twin.arguments())  # type: ignore[arg-type]
    interpreted("qkv_triton").launch(*case.arguments())
    assert float((case.q - twin.q).norm() / twin.q.norm()) < 1e-6
    # A number in the middle of two codes may get either.
    assert (case.cache != twin.cache).double().mean() < 0.01
    for each in (twin, case):
        each.check_codes(1e-6)


def check_extremes(run: Callable[..., object], bits: int, device: str = "cpu") -> None:
    """Constants, NaN and what float16 cannot hold, as the codes of :func:`quantize` say."""
    case, twin = (Codes(Shape(4, 1, 1, 64, 0), torch.float32, bits, where) for where in (device, "cpu"))
    for each in (case, twin):
        each.qkv[0, 64:128] = 0.375
        each.qkv[0, 128:] = 0.0
        each.qkv[1, 64:67] = torch.tensor([1e30, -1e30, 0.0])
        each.qkv[1, 130] = float("nan")
        each.qkv[2, 64:] = 1e-30
        each.qkv[3, 130:132] = torch.tensor([float("inf"), float("-inf")])
    run(*case.arguments())
    write_qkv(*twin.arguments())  # type: ignore[arg-type]
    assert torch.equal(case.cache.cpu(), twin.cache)
    assert torch.equal(case.scales.cpu(), twin.scales)


@pytest.mark.filterwarnings("ignore:invalid value encountered")
@pytest.mark.parametrize("bits", [8, 4])
def test_codes_of_extremes(interpreted: Callable[[str], ModuleType], bits: int) -> None:
    check_extremes(interpreted("qkv_triton").launch, bits)


@pytest.mark.gpu
@pytest.mark.parametrize(("bits", "shape"), [*OF_CODES, (4, Shape(600, 16, 8, 128, 128, True, True, True))], ids=str)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_codes_on_a_gpu(bits: int, shape: Shape, dtype: torch.dtype) -> None:
    case = Codes(shape, dtype, bits, "cuda")
    write_qkv(*case.arguments())  # type: ignore[arg-type]
    case.check_codes(1e-6)
    check_extremes(write_qkv, bits, "cuda")


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [*SHAPES, Shape(600, 16, 8, 128, 128, True, True, True)], ids=str)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_on_a_gpu(shape: Shape, dtype: torch.dtype) -> None:
    case = Case(shape, dtype, "cuda")
    write_qkv(*case.arguments())  # type: ignore[arg-type]
    case.check({torch.float32: 1e-6, torch.float16: 4e-4, torch.bfloat16: 3e-3}[dtype])


@pytest.mark.gpu
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_on_a_gpu_with_an_8_bit_cache(shape: Shape) -> None:
    case = Case(shape, torch.bfloat16, "cuda", FP8)
    write_qkv(*case.arguments())  # type: ignore[arg-type]
    case.check(3e-3, FP8_ERROR)
    check_numbers_beyond_the_range(write_qkv, "cuda")
