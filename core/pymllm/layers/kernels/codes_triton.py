"""Quantized vectors (:mod:`pymllm.layers.kernels.codes`) for Triton kernels: making and reading codes and scales.

Codes are read less half their number, so that the products they take part in do not cancel each other: a number is
middle + scale x (code - 2^(bits - 1)), where middle = offset + scale x 2^(bits - 1).

They are read as 16-bit words, two bytes each, because tensor cores take 16-bit numbers: what places a word where the
first of its codes is needed as a float16 (``ldmatrix``, with and without transposition) places all of them, and no
byte is moved. So the codes of a word come apart into planes: the columns of a plane are those of the words.
"""
# Triton compiles these functions; its parameters have no Python types, and constants are named as such.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import struct

import triton
import triton.language as tl


def _half(number: float) -> str:
    """A pair of this float16, in PTX."""
    return f"0x{2 * struct.pack('>e', number).hex()}"


def _plane(out: int, planes: int, shift: int, mask: str, factor: float, made: str) -> str:
    """PTX: output ``out`` of ``planes`` is the codes under ``mask`` of a pair of words moved down by ``shift``. made:
    "raised", "codes" or "numbers".

    With the bits of 1024 above them (0x64), codes c of n bits are the float16 1024 + c, or 1024 + 16 c from bit 4 on
    (as in "Who Says Elephants Can't Run", Kim et al. 2022), of which one instruction makes c - 2^(n - 1), exactly. Of 8
    bits they are kept less half already: exclusive or with 0x80 makes them c again. Raised ones lack that instruction.
    Of numbers, half is made: whole ones may be too large for float16.
    """
    top, less = (0x64806480, 1152) if planes == 2 else (0x64006400, 1032 if factor == 1 else 72 * 16)
    part = f"${out}"
    if made == "raised":
        return f"""
        shr.b32 part, ${planes}, {shift};
        lop3.b32 {part}, part, {mask}, {top:#x}, 0x6A;"""
    if made == "numbers":
        factor, part = factor / 2, "part"
    return f"""
        shr.b32 part, ${planes}, {shift};
        lop3.b32 part, part, {mask}, {top:#x}, 0x6A;
        mov.b32 factor, {_half(factor)};
        mov.b32 less, {_half(-less * factor)};
        {f"add.rn.f16x2 {part}, part, less" if factor == 1 else f"fma.rn.f16x2 {part}, part, factor, less"};
        {f"fma.rn.f16x2 ${out}, part, ${planes + 1}, ${planes + 2};" if made == "numbers" else ""}"""


def _planes(bits: int, made: str) -> tl.constexpr:
    parts: list[tuple[int, str, float]] = [(0, "0x00FF00FF", 1), (8, "0x00FF00FF", 1)]
    if bits == 4:
        parts = [(0, "0x000F000F", 1), (8, "0x000F000F", 1), (0, "0x00F000F0", 1 / 16), (8, "0x00F000F0", 1 / 16)]
    body = "".join(_plane(i, len(parts), *part, made) for i, part in enumerate(parts))
    return tl.constexpr("{ .reg .b32 part, factor, less;" + body + "\n}")


RAISED_8, RAISED_4 = _planes(8, "raised"), _planes(4, "raised")
CODES_OF_8, CODES_OF_4 = _planes(8, "codes"), _planes(4, "codes")
NUMBERS_OF_8, NUMBERS_OF_4 = _planes(8, "numbers"), _planes(4, "numbers")


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
def code_planes(words, BITS: tl.constexpr, KIND: tl.constexpr):
    """The codes in int16 words, less half their number, as KIND -> 4 blocks of the shape of ``words``: of 4 bits the
    lower halves of first bytes, of second bytes, and the upper halves of both; of 8 bits first and second bytes, twice.
    KIND is float16, or float32 (of which Triton's interpreter is capable)."""
    if tl.float16 == KIND:  # the dtypes of an assembly's results have to be spelled out
        if BITS == 8:
            first, second = tl.inline_asm_elementwise(
                CODES_OF_8, "=&r,=&r,r", [words], dtype=(tl.float16, tl.float16), is_pure=True, pack=2
            )
            return first, second, first, second
        else:
            return tl.inline_asm_elementwise(
                CODES_OF_4, "=&r,=&r,=&r,=&r,r", [words], dtype=(tl.float16, tl.float16, tl.float16, tl.float16),
                is_pure=True, pack=2,
            )  # fmt: skip
    else:
        even, odd = words & 255, (words >> 8) & 255
        if BITS == 8:
            first, second = ((even ^ 128) - 128).to(KIND), ((odd ^ 128) - 128).to(KIND)
            return first, second, first, second
        else:
            first, second = ((even & 15) - 8).to(KIND), ((odd & 15) - 8).to(KIND)
            return first, second, ((even >> 4) - 8).to(KIND), ((odd >> 4) - 8).to(KIND)


@triton.jit
def raised_planes(words, BITS: tl.constexpr, KIND: tl.constexpr):
    """``code_planes`` for fewer instructions: of float16, codes plus 1152 of 8 bits; of 4, codes plus 1032, and of
    upper halves 16 times codes plus 72. What they are multiplied with has to make up for it (``lowered``)."""
    if tl.float16 == KIND:
        if BITS == 8:
            first, second = tl.inline_asm_elementwise(
                RAISED_8, "=&r,=&r,r", [words], dtype=(tl.float16, tl.float16), is_pure=True, pack=2
            )
            return first, second, first, second
        else:
            return tl.inline_asm_elementwise(
                RAISED_4, "=&r,=&r,=&r,=&r,r", [words], dtype=(tl.float16, tl.float16, tl.float16, tl.float16),
                is_pure=True, pack=2,
            )  # fmt: skip
    else:
        return code_planes(words, BITS, KIND)


@triton.jit
def lowered(a, b, c, d, BITS: tl.constexpr, KIND: tl.constexpr):
    """Float32 blocks [M, D], which the planes of codes are to be multiplied with, -> (four blocks of KIND,
    [M]): the products of those with ``raised_planes``, plus that, are what is meant."""
    lift = tl.sum(a + b, 1) * -(1152.0 if BITS == 8 else 1032.0)
    if BITS == 4:
        lift -= tl.sum(c + d, 1) * 72.0
    if tl.float16 == KIND:
        return a.to(KIND), b.to(KIND), (c * 0.0625).to(KIND), (d * 0.0625).to(KIND), lift
    else:
        return a.to(KIND), b.to(KIND), c.to(KIND), d.to(KIND), lift * 0.0


@triton.jit
def power_below(x):
    """The largest power of two that is at most x, of float32 x > 0; at least 2^-126."""
    return tl.maximum(x.to(tl.int32, bitcast=True) & 0x7F800000, 0x00800000).to(tl.float32, bitcast=True)


@triton.jit
def inverse_power(power):
    """1 / power, exactly, of a power of two from 2^-126 to 2^126."""
    return (0x7F000000 - power.to(tl.int32, bitcast=True)).to(tl.float32, bitcast=True)


@triton.jit
def code_numbers(words, scale, middle, BITS: tl.constexpr, KIND: tl.constexpr):
    """Half of the numbers (whole ones may be too large for float16) that int16 words [N, D] of codes stand for, as
    KIND: the planes of ``code_planes`` side by side, [N, 16 / BITS x D]. scale, middle: [N], of ``load_scales``."""
    if tl.float16 == KIND:
        factor, half = scale.to(KIND)[:, None], (middle * 0.5).to(KIND)[:, None]
        if BITS == 8:
            a, b = tl.inline_asm_elementwise(
                NUMBERS_OF_8, "=&r,=&r,r,r,r", [words, factor, half], dtype=(tl.float16, tl.float16), is_pure=True,
                pack=2,
            )  # fmt: skip
        else:
            a, b, c, d = tl.inline_asm_elementwise(
                NUMBERS_OF_4, "=&r,=&r,=&r,=&r,r,r,r", [words, factor, half],
                dtype=(tl.float16, tl.float16, tl.float16, tl.float16), is_pure=True, pack=2,
            )  # fmt: skip
    else:
        a, b, c, d = code_planes(words, BITS, KIND)
        factor, half = scale[:, None] * 0.5, middle[:, None] * 0.5
        a, b, c, d = a * factor + half, b * factor + half, c * factor + half, d * factor + half
    return side_by_side(side_by_side(a, b), side_by_side(c, d)) if BITS == 4 else side_by_side(a, b)


@triton.jit
def whole_codes(words, BITS: tl.constexpr, KIND: tl.constexpr):
    """The planes of ``code_planes`` side by side: int16 words [N, D] -> codes [N, 16 / BITS x D] of KIND."""
    a, b, c, d = code_planes(words, BITS, KIND)
    return side_by_side(side_by_side(a, b), side_by_side(c, d)) if BITS == 4 else side_by_side(a, b)


@triton.jit
def side_by_side(x, y):
    """[N, D] twice -> [N, 2 D]."""
    return tl.permute(tl.join(x, y), (0, 2, 1)).reshape((x.shape[0], 2 * x.shape[1]))
