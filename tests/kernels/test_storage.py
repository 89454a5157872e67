"""float8_e4m3fn as caches hold it: every code, and rounding to it, against the format's definition in float64."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import numpy as np
import torch
from torch import Tensor

from pymllm.layers.kernels.storage import kernel_cache, rows_of, stored

FP8 = torch.float8_e4m3fn


def value(code: int) -> float:
    """Of a code: sign, four bits of exponent with bias 7, three bits of mantissa; exponent 0 is subnormal."""
    exponent, mantissa = code >> 3 & 15, code & 7
    if (exponent, mantissa) == (15, 7):
        return float("nan")
    size = (1 + mantissa / 8) * 2.0 ** (exponent - 7) if exponent else mantissa / 8 * 2.0**-6
    return -size if code & 0x80 else size


VALUES = np.array([value(code) for code in range(256)])
LADDER = VALUES[:0x7F]  # not negative, ascending


def nearest(x: float) -> float:
    """The nearest value; of two that are as near, the one with the even code."""
    if np.isnan(x):
        return x
    distance = np.abs(LADDER - min(abs(x), 448.0))
    best = np.flatnonzero(distance == distance.min())
    return float(np.copysign(LADDER[best[best % 2 == 0][0] if len(best) > 1 else best[0]], x))


def numbers() -> Tensor:
    """Of all sizes, every middle between two values and what is next to it among them."""
    generator = torch.Generator().manual_seed(3)
    middles = torch.tensor((LADDER[1:] + LADDER[:-1]) / 2, dtype=torch.float32)
    beside = [torch.nextafter(middles, torch.tensor(edge)) for edge in (0.0, 1e9)]
    special = torch.tensor([0.0, 448.0, 449.0, 464.0, 480.0, 1e30, float("inf"), float("nan"), 2.0**-10, 2.0**-30])
    spread = torch.randn(500, generator=generator) * 10.0 ** torch.randint(-4, 4, (500,), generator=generator)
    positive = torch.cat([middles, *beside, special, spread])
    return torch.cat([positive, -positive])


def test_stored_numbers_are_the_nearest() -> None:
    x = numbers()
    found = stored(x, FP8).double().numpy()
    np.testing.assert_array_equal(found, [nearest(number) for number in x.double().tolist()])


def test_other_dtypes_are_rounded_as_usual() -> None:
    x = numbers()
    assert torch.equal(stored(x, torch.bfloat16).nan_to_num(7.0), x.bfloat16().nan_to_num(7.0))


def test_bytes_and_numbers_are_one_memory() -> None:
    cache = torch.zeros(4, 2, dtype=FP8)
    rows_of(cache).index_copy_(0, torch.tensor([2]), rows_of(stored(torch.tensor([[1.0, -3.0]]), FP8)))
    assert cache.float().tolist() == [[0, 0], [0, 0], [1, -3], [0, 0]]
    assert kernel_cache(cache).dtype == torch.uint8  # a CPU has no conversion that the interpreter gets right
    half = torch.zeros(2, dtype=torch.float16)
    assert rows_of(half) is half
    assert kernel_cache(half) is half


def test_kernels_convert_by_integer_arithmetic(interpreted: Callable[[str], ModuleType]) -> None:
    """A head without norm and rotation passes a kernel unchanged but for the conversion."""
    x = numbers()
    x = x[x.isfinite()]
    size = 64
    rows = x[: len(x) // size * size].view(-1, 1, size)
    q, cache = torch.empty(len(rows), 1, size), torch.zeros(2, len(rows), 1, 1, size, dtype=FP8)
    slots, nothing = torch.arange(len(rows)), torch.zeros(len(rows), dtype=torch.int64)
    qkv = torch.cat([rows, rows, rows], 1).flatten(1)
    interpreted("qkv_triton").launch(qkv, q, cache[0], cache[1], slots, nothing, None, None, None, 0.0, 0.0)
    expected = [nearest(number) for number in rows.flatten().double().tolist()]
    for half in cache:
        np.testing.assert_array_equal(half.flatten().double().numpy(), expected)
