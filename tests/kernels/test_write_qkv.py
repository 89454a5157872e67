"""q, k and v reach their places, normed and rotated as in float64: the twin, the interpreted kernel, and on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType

import pytest
import torch
from torch import Tensor

from pymllm.layers.kernels import write_qkv

EPS, PAGE = 1e-3, 4


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

    def __init__(self, shape: Shape, dtype: torch.dtype, device: str = "cpu") -> None:
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
        self.cache = torch.full(layout, float("nan"), dtype=dtype, device=device)
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
            EPS,
        )

    def check(self, bound: float) -> None:
        shape = self.shape
        parts = self.qkv.cpu().double().view(shape.tokens, -1, shape.size)
        q, k, v = parts.split([shape.heads, shape.kv_heads, shape.kv_heads], 1)
        page, offset = self.slots.cpu() // PAGE, self.slots.cpu() % PAGE
        for found, exact in [
            (self.q.cpu(), self._exact(q, self.q_weight)),
            (self.k_cache.cpu()[page, offset], self._exact(k, self.k_weight)),
            (self.v_cache.cpu()[page, offset], v),
        ]:
            assert float((found.double() - exact).norm() / exact.norm()) < bound
        assert int(self.cache.isfinite().sum()) == 2 * k.numel(), "other places of the cache were written"

    def _exact(self, x: Tensor, weight: Tensor | None) -> Tensor:
        if weight is not None:
            x = x / (x.square().mean(-1, keepdim=True) + EPS).sqrt() * weight.cpu().double()
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


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [*SHAPES, Shape(600, 16, 8, 128, 128, True, True, True)], ids=str)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_on_a_gpu(shape: Shape, dtype: torch.dtype) -> None:
    case = Case(shape, dtype, "cuda")
    write_qkv(*case.arguments())  # type: ignore[arg-type]
    case.check({torch.float32: 1e-6, torch.float16: 4e-4, torch.bfloat16: 3e-3}[dtype])
