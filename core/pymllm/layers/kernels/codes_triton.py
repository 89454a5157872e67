"""Quantized vectors (:mod:`pymllm.layers.kernels.codes`) for Triton kernels: making and reading codes and scales.

Codes are read less half their number, so that the products they take part in do not cancel each other: a number is
middle + scale x (code - 2^(bits - 1)), where middle = offset + scale x 2^(bits - 1).
"""
# Triton compiles these functions; its parameters have no Python types, and constants are named as such.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl


def _unpacking(shift: int, pair: str, byte: str, one: str, less: str) -> str:
    """PTX that makes of four bytes two pairs of 16-bit floats; see :func:`half_codes`."""
    return f"""{{
        .reg .b32 codes, first, second, one, less;
        shr.b32 codes, $2, {shift};
        and.b32 codes, codes, 0x0F0F0F0F;
        prmt.b32 first, codes, {byte}, 0x4140;
        prmt.b32 second, codes, {byte}, 0x4342;
        mov.b32 one, {one};
        mov.b32 less, {less};
        fma.rn.{pair} $0, first, one, less;
        fma.rn.{pair} $1, second, one, less;
    }}"""


BF16 = ("bf16x2", "0x43434343", "0x3F803F80", "0xC308C308")
FP16 = ("f16x2", "0x64646464", "0x3C003C00", "0xE408E408")
LOWER_BF16, UPPER_BF16 = tl.constexpr(_unpacking(0, *BF16)), tl.constexpr(_unpacking(4, *BF16))
LOWER_FP16, UPPER_FP16 = tl.constexpr(_unpacking(0, *FP16)), tl.constexpr(_unpacking(4, *FP16))


@triton.jit
def finite(x):
    """float32 x as it is quantized: what float16 cannot hold cut off, 0 for NaN."""
    return tl.minimum(tl.maximum(tl.where(x == x, x, 0.0), -65504.0), 65504.0)


@triton.jit
def make_scales(least, largest, broken, BITS: tl.constexpr):
    """What vectors with these bounds are kept with -> (scales int32, scale float32, offset float32).
    broken: not 0 for vectors with a NaN, whose kept offset is NaN."""
    levels: tl.constexpr = (1 << BITS) - 1
    scale = tl.div_rn(largest - least, tl.full(least.shape, levels, tl.float32)).to(tl.float16)
    offset = least.to(tl.float16)
    upper = tl.where(broken != 0, 0x7E00, offset.to(tl.int16, bitcast=True).to(tl.int32))
    word = (scale.to(tl.int16, bitcast=True).to(tl.int32) & 0xFFFF) | (upper << 16)
    return word, scale.to(tl.float32), offset.to(tl.float32)


@triton.jit
def make_codes(x, scale, offset, BITS: tl.constexpr):
    """Codes, int32, of x (of :func:`finite`), given scale and offset of the same shape."""
    levels: tl.constexpr = (1 << BITS) - 1
    steps = tl.div_rn(x - offset, tl.where(scale > 0, scale, 1.0))
    codes = tl.minimum(tl.maximum(tl.floor(steps + 0.5), 0.0), levels * 1.0)
    return tl.where(scale > 0, codes, 0.0).to(tl.int32)


@triton.jit
def load_scales(pointers, valid, BITS: tl.constexpr):
    """(scale, middle), float32, of vectors; 0 and 0 where not valid."""
    word = tl.load(pointers, mask=valid, other=0)
    scale = (word & 0xFFFF).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
    offset = (word >> 16).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
    return scale, offset + scale * (1 << (BITS - 1))


@triton.jit
def half_codes(packed, UPPER: tl.constexpr, KIND: tl.constexpr, PLAIN: tl.constexpr):
    """The codes in the lower or upper halves of bytes, less 8, as KIND. PLAIN: by Triton's conversions (of which its
    interpreter is capable), otherwise for 16-bit KIND by fewer instructions.

    Four bytes at a time: a half byte c below the byte 0x43 is the bfloat16 128 + c, below 0x64 the float16 1024 + c
    (as in "Who Says Elephants Can't Run", Kim et al. 2022), from which 136 or 1032 is taken, exactly.
    """
    if PLAIN or tl.float32 == KIND:
        codes = packed >> 4 if UPPER else packed & 15
        return (codes.to(tl.int8) - 8).to(KIND)
    elif tl.bfloat16 == KIND:  # the dtype of an assembly's result has to be spelled out
        code: tl.constexpr = UPPER_BF16 if UPPER else LOWER_BF16
        return tl.inline_asm_elementwise(code, "=r,=r,r", [packed], dtype=tl.bfloat16, is_pure=True, pack=4)
    else:
        other: tl.constexpr = UPPER_FP16 if UPPER else LOWER_FP16
        return tl.inline_asm_elementwise(other, "=r,=r,r", [packed], dtype=tl.float16, is_pure=True, pack=4)
