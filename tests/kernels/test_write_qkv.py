"""q, k and v reach their places, normed and rotated as in float64: the twin, the interpreted kernel, and on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType

import pytest
import torch
from torch import Tensor

from pymllm.layers.kernels import write_qkv

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
