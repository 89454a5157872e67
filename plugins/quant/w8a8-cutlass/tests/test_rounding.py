"""Rounding and products in plain PyTorch are, to the bit, what NumPy computes from their definition."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pymllm_quant_w8a8_cutlass.rounding import integer_product, quantize_rows, scaled_product


def rows(count: int, size: int, *, seed: int = 0) -> np.ndarray:
    """float32, each row of another size, with zeros and an outlier."""
    generator = np.random.default_rng(seed)
    sizes = 10.0 ** generator.integers(-12, 12, (count, 1))
    x = generator.standard_normal((count, size)) * sizes
    x[0] = 0
    x[-1, 0] *= 1000
    return x.astype(np.float32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_rows_are_rounded_to_the_nearest_integer_and_ties_to_even(dtype: torch.dtype) -> None:
    x = torch.from_numpy(rows(23, 160)).clamp(-6e4, 6e4).to(dtype)
    q, scale = quantize_rows(x)
    wide = x.double().numpy()
    largest = np.abs(wide).max(axis=1).astype(np.float32)
    expected = np.where(largest > 0, largest / np.float32(127), np.float32(1))
    assert np.array_equal(scale.numpy(), expected)
    units = wide / expected[:, None]
    # To the nearest integer, but that float32 cannot tell which of two is nearer when they are as near as 2^-16.
    assert np.abs(q.numpy() - units).max() <= 0.5 + 2.0**-16
    assert q[0].eq(0).all()


def test_ties_go_to_the_even_integer() -> None:
    q, scale = quantize_rows(torch.tensor([[127.0, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, -127.0]]))
    assert scale.tolist() == [1.0]
    assert q.tolist() == [[127, 0, 2, 2, 0, -2, -2, -127]]


@pytest.mark.parametrize(("value", "largest"), [(1e-45, 0), (1e-37, 0), (1e-35, 127), (3e38, 127)])
def test_the_smallest_and_largest_numbers_do_not_overflow(value: float, largest: int) -> None:
    q, scale = quantize_rows(torch.tensor([[value, -value, 0.0, 0.0]]))
    assert scale.tolist() == [1.0 if largest == 0 else pytest.approx(value / 127)]
    assert q.tolist() == [[largest, -largest, 0, 0]]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_not_finite_stays_so(value: float) -> None:
    q, scale = quantize_rows(torch.tensor([[1.0, value, 2.0], [1.0, -2.0, 0.5]]))
    assert not scale[0].isfinite()
    assert scale[1] == np.float32(2) / np.float32(127)
    assert q[1].tolist() == [64, -127, 32]


@pytest.mark.parametrize("shape", [(1, 48, 160), (2, 7, 16), (17, 301, 1040), (3, 5, 9728)])
def test_products_are_exact_at_the_ends_of_the_range(shape: tuple[int, int, int]) -> None:
    count, width, terms = shape
    generator = np.random.default_rng(1)
    x = generator.choice(np.array([-127, 127, 126, 3], dtype=np.int8), (count, terms))
    weight = generator.choice(np.array([-128, 127, -1], dtype=np.int8), (width, terms))
    x[0], weight[0] = 127, -128  # the largest sum there is
    found = integer_product(torch.from_numpy(x), torch.from_numpy(weight))
    assert found.dtype == torch.int32
    assert np.array_equal(found.numpy(), x.astype(np.int64) @ weight.astype(np.int64).T)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_scaled_products_round_once(dtype: torch.dtype) -> None:
    generator = np.random.default_rng(2)
    q, weight = (generator.integers(-127, 128, (n, 256), dtype=np.int8) for n in (5, 40))
    x_scale, weight_scale = (generator.random(n, dtype=np.float32) * 1e-2 for n in (5, 40))
    bias = torch.from_numpy(generator.standard_normal(40)).to(dtype)
    parts = map(torch.from_numpy, (q, x_scale, weight, weight_scale))
    found = scaled_product(*parts, bias, dtype)
    exact = q.astype(np.float64) @ weight.astype(np.float64).T * x_scale[:, None] * weight_scale + bias.double().numpy()
    assert found.dtype == dtype
    error = np.abs(found.double().numpy() - exact)
    # Half a unit in the last place for the one rounding, and a few float32 roundings before it.
    assert (error <= torch.finfo(dtype).eps / 2 * np.abs(exact) + 1e-6 * np.abs(exact).max()).all()
