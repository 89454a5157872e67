"""What kernels read beside the codes: a scale and a zero point for each row of W and group, one word where possible."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def scale_of(bits, INSIDE: tl.constexpr):
    """Words of ``Weight4.scales`` -> float32 scales."""
    if INSIDE:
        bits = bits & ~31
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def zero_of(bits, zeros, at, INSIDE: tl.constexpr):
    """The zero points beside these words, float32. zeros: where they are of their own, at the same places; or None."""
    if INSIDE:
        zero = (bits & 31).to(tl.float32)
    elif zeros is not None:
        zero = tl.load(zeros + at).to(tl.float32)
    else:
        zero = tl.full(bits.shape, 8.0, tl.float32)
    return zero
