"""What the kernels share: rounding rows to 8-bit integers, and the norm before it."""

from __future__ import annotations

import triton
import triton.language as tl

SMALLEST: tl.constexpr = tl.constexpr(2.0**-126)
"""That of :mod:`pymllm_quant_w8a8_cutlass.rounding`."""


@triton.jit
def normed(wide, gamma, eps, SIZE: tl.constexpr, axis: tl.constexpr, element: tl.constexpr):
    """An RMS norm of rows that lie along ``axis``, rounded to the element twice, as :class:`pymllm.layers.RMSNorm` is.
    wide, gamma: float32; what is beyond SIZE is 0."""
    factor = tl.rsqrt(tl.sum(wide * wide, axis, keep_dims=True) / SIZE + eps)
    return ((wide * factor).to(element).to(tl.float32) * gamma).to(element).to(tl.float32)


@triton.jit
def scale_of(wide, axis: tl.constexpr):
    """max |x| / 127 of float32 rows along ``axis``, 1 where that has no reciprocal; NaN where a row holds one."""
    # As integers, the bits of floats that are not negative have the floats' order, with what is no number on top.
    bits = wide.to(tl.int32, bitcast=True) & 0x7FFFFFFF
    scale = tl.div_rn(tl.max(bits, axis, keep_dims=True).to(tl.float32, bitcast=True), 127.0)
    return tl.where(scale < SMALLEST, 1.0, scale)


@triton.jit
def rounded(wide, scale):
    """x times 1 / scale, rounded half to even, in float32 from -127 to 127."""
    # Between the product and the sum, so that no compiler makes them one, which would round ties otherwise.
    inside = tl.minimum(tl.maximum(wide * tl.div_rn(1.0, scale), -127.0), 127.0)
    # A number next to 1.5 * 2^23 has no bits left for a fraction.
    return (inside + 12582912.0) - 12582912.0
