"""Quantized vectors: the round trip against the definition's bounds in float64, constants, extremes, their bytes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from pymllm.layers.kernels.codes import code_bits, code_dtype, code_width, dequantize, quantize, vector_bytes

HALF = 2.0**-11
"""Largest relative error of rounding to float16."""

LEAST_HALF = 2.0**-25
"""Largest error of rounding to float16 what is smaller than its normal numbers."""


@pytest.fixture(params=[8, 4])
def bits(request: pytest.FixtureRequest) -> int:
    return request.param


def round_trip(x: Tensor, bits: int) -> Tensor:
    return dequantize(*quantize(x, bits), torch.full(x.shape, float("nan")))


def vectors(size: int) -> Tensor:
    """Of all magnitudes that a model's keys and values have, and of signs mixed, all positive and all negative."""
    generator = torch.Generator().manual_seed(size)
    x = torch.randn(600, size, generator=generator) * 10.0 ** torch.linspace(-7, 4, 600)[:, None]
    x[1::4] = x[1::4].abs()
    x[2::4] = -x[2::4].abs()
    x[3::4] += 3 * x[3::4].abs().amax(-1, keepdim=True)  # far from zero
    return x


@pytest.mark.parametrize("size", [128, 64, 20, 7, 1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_a_number_is_off_by_half_a_step_and_what_rounding_moved(dtype: torch.dtype, size: int, bits: int) -> None:
    x = vectors(size).clamp(-6e4, 6e4).to(dtype)
    exact, found = x.double().numpy(), round_trip(x, bits).double().numpy()
    least, largest, levels = exact.min(-1, keepdims=True), exact.max(-1, keepdims=True), 2**bits - 1
    step = (largest - least) / levels
    of_scale, of_offset = np.maximum(HALF * step, LEAST_HALF), np.maximum(HALF * np.abs(least), LEAST_HALF)
    bound = step / 2 + levels * of_scale + of_offset
    assert (np.abs(found - exact) <= bound * (1 + 1e-5)).all()


def test_inner_numbers_are_off_by_half_a_step(bits: int) -> None:
    """Rounding scale and offset moves the ends alone: codes are made with what is kept."""
    x = torch.randn(500, 64, generator=torch.Generator().manual_seed(1))
    x[:, 0], x[:, 1] = -6.0, 6.0
    step = np.float64(np.float16(12 / (2**bits - 1)))
    error = (round_trip(x, bits) - x)[:, 2:].abs().double().max().item()
    assert 0.4 * step < error <= step / 2 * (1 + 1e-5)


@pytest.mark.parametrize("value", [0.0, 1.0, -0.37109375, 300.0, -6e4, 65504.0])
def test_a_constant_that_float16_holds_is_exact(value: float, bits: int) -> None:
    value = float(np.float16(value))
    assert torch.equal(round_trip(torch.full((2, 64), value), bits), torch.full((2, 64), value))


def test_other_constants_are_rounded_to_float16(bits: int) -> None:
    for value in (1e-30, 0.1, -1e-6, 12345.678):
        found = round_trip(torch.full((1, 16), value), bits)
        assert found.unique().tolist() == [float(np.float16(value))]


def test_constants_of_bfloat16_are_exact(bits: int) -> None:
    """All from the least normal number of float16 up to its largest, of both signs."""
    every = torch.arange(-32768, 32768, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
    ordinary = every[(every.abs() >= 2.0**-14) & (every.float().abs() <= 65504)]
    assert len(ordinary) > 7000
    x = ordinary[:, None].expand(-1, 8)
    assert torch.equal(round_trip(x, bits), x.float())


def test_what_is_beyond_float16_is_cut_off(bits: int) -> None:
    x = torch.tensor([[1e30, -1e30, 0.0, 65504.0], [float("inf"), float("-inf"), 0.0, -7e4]])
    found = round_trip(x, bits)
    assert found.isfinite().all()
    limits = torch.tensor([[65504.0, -65504.0], [65504.0, -65504.0]])
    torch.testing.assert_close(found[:, :2], limits, rtol=2e-3, atol=0)


def test_tiny_numbers_stay_tiny(bits: int) -> None:
    found = round_trip(torch.tensor([[1e-30, -1e-30, 3e-9, -1e-7]]), bits)
    assert found.abs().max() <= 2e-7


def test_an_outlier_takes_the_precision_of_its_vector_alone(bits: int) -> None:
    x = torch.randn(3, 64, generator=torch.Generator().manual_seed(2))
    expected = round_trip(x, bits)
    x[1, 5] = 6e4
    found = round_trip(x, bits)
    assert torch.equal(found[::2], expected[::2])
    assert found[1, 5] == pytest.approx(6e4, rel=1e-3)


def test_a_nan_makes_its_vector_nan_and_no_other(bits: int) -> None:
    x = torch.randn(3, 64, generator=torch.Generator().manual_seed(3))
    expected = round_trip(x, bits)
    x[1, 5] = float("nan")
    found = round_trip(x, bits)
    assert found[1].isnan().all()
    assert torch.equal(found[::2], expected[::2])


def test_hand_worked_codes() -> None:
    x = torch.tensor([[-1.0, 0.0, 0.49, 0.51, 14.0]])  # 15 steps of 1
    codes, scales = quantize(x, 4)
    assert scales.view(torch.float16).tolist() == [1.0, -1.0]
    assert codes.tolist() == [[0 | 2 << 4, 1 | 15 << 4, 1]]  # components 0 and 3, 1 and 4, 2 alone
    codes, scales = quantize(torch.tensor([[-100.0, 155.0, 20.4, 20.6]]), 8)
    assert scales.view(torch.float16).tolist() == [1.0, -100.0]
    assert codes.tolist() == [[-128, 127, 120 - 128, 121 - 128]]


def test_scales_of_a_single_head_may_have_any_stride(bits: int) -> None:
    x = torch.randn(5, 1, 16, generator=torch.Generator().manual_seed(4))
    codes, scales = quantize(x, bits)
    apart = torch.empty_strided((5, 1), (1, 5), dtype=torch.int32).copy_(scales)
    assert apart.is_contiguous()
    assert apart.stride(-1) == 5
    assert torch.equal(dequantize(codes, apart, torch.empty_like(x)), round_trip(x, bits))


@pytest.mark.parametrize(("width", "least"), [(8, 1.9), (4, 3.6)])
def test_how_much_smaller_a_vector_of_128_is(width: int, least: float) -> None:
    assert 2 * 128 / vector_bytes(128, width) >= least
    assert code_bits(code_dtype(width)) == width
    assert code_width(7, width) == {8: 7, 4: 4}[width]
