"""Conversions between float32 and what a KV cache holds, for Triton kernels.

A cache's elements are of a dtype that Triton converts, or uint8, which stands for the bits of float8_e4m3fn (one sign
bit, four of exponent with bias 7, three of mantissa; no infinities, NaN is all ones: "FP8 Formats for Deep Learning",
Micikevicius et al. 2022) where Triton does not.
"""
# Triton compiles these functions; its parameters have no Python types, and constants are named as such.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def to_cache(x, KIND: tl.constexpr):
    """float32 x as a cache's element type; an 8-bit float saturates, and NaN stays NaN."""
    if tl.uint8 == KIND:
        return e4m3_bits(x)
    return x.to(KIND)  # the instruction for float8e4nv saturates


@triton.jit
def from_cache(x, KIND: tl.constexpr):
    """What a cache holds, as KIND."""
    if x.dtype == tl.uint8:
        return e4m3_values(x).to(KIND)
    return x.to(KIND)


@triton.jit
def e4m3_bits(x):
    """The bits, uint8, of the float8_e4m3fn nearest to float32 x (ties to even); at most 448 in magnitude."""
    magnitude = tl.minimum(tl.abs(x), 448.0)
    bits = magnitude.to(tl.int32, bitcast=True)
    normal = ((bits + 0x7FFFF + ((bits >> 20) & 1)) >> 20) - (120 << 3)
    # Below 2**-6 all are multiples of 2**-9, which is the last place of a float32 that begins at 2**14.
    small = (magnitude + 16384.0).to(tl.int32, bitcast=True) - 0x46800000
    code = tl.where(magnitude < 0.015625, small, normal)
    code = tl.where(x != x, 0x7F, code)
    return (code | ((x.to(tl.int32, bitcast=True) >> 24) & 0x80)).to(tl.uint8)


@triton.jit
def e4m3_values(x):
    """The float32 values of the bits of float8_e4m3fn, uint8."""
    code = x.to(tl.int32)
    # As a float32 the exponent's bias is 127, not 7: so the number is 2**120 too small, exactly.
    bits = ((code & 0x80) << 24) | ((code & 0x7F) << 20)
    value = bits.to(tl.float32, bitcast=True) * 1.329227995784916e36
    return tl.where((code & 0x7F) == 0x7F, float("nan"), value)
