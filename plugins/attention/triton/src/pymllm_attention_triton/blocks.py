"""What the attention kernels are built of: where rows lie, how blocks are loaded, one step of the softmax.

Shape suffixes: M query rows of a program, N keys of a block, D head size padded to a power of two.
"""
# Triton compiles these functions; its parameters have no Python types, and constants are named as such.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

from pymllm.layers.kernels.codes_triton import inverse_power, power_below, raised_planes
from pymllm.layers.kernels.storage_triton import from_cache


@triton.jit
def find_block(starts, requests, item, BLOCK: tl.constexpr, LANES: tl.constexpr, SKIP_SINGLE: tl.constexpr):
    """Which block of which sequence is number ``item``, every sequence being cut into blocks of BLOCK tokens.

    starts: [requests + 1] bounds. SKIP_SINGLE: sequences of one token have no block.
    Returns (request, block); a request of at least ``requests`` means that there is no such item.
    """
    request = 0
    passed_blocks = 0
    all_blocks = 0
    for base in range(0, requests, LANES):
        lane = base + tl.arange(0, LANES)
        inside = lane < requests
        length = tl.load(starts + lane + 1, mask=inside, other=0) - tl.load(starts + lane, mask=inside, other=0)
        blocks = (length + BLOCK - 1) // BLOCK
        if SKIP_SINGLE:
            blocks = tl.where(length > 1, blocks, 0)
        passed = all_blocks + tl.cumsum(blocks, 0) <= item
        request += tl.sum(passed.to(tl.int32), 0)
        passed_blocks += tl.sum(tl.where(passed, blocks, 0), 0)
        all_blocks += tl.sum(blocks, 0)
    return request, item - passed_blocks


@triton.jit
def page_numbers(table, positions, valid, PAGE: tl.constexpr):
    """The pages [N] (int64) that hold these positions; of invalid ones, page 0."""
    return tl.load(table + positions // PAGE, mask=valid, other=0).to(tl.int64)


@triton.jit
def page_rows(pages, positions, PAGE: tl.constexpr, PAGE_STRIDE: tl.constexpr, WIDTH: tl.constexpr):
    """Offsets [N] (int64, elements) of the cache rows, WIDTH apart in a page, that hold these positions."""
    return pages * PAGE_STRIDE + (positions % PAGE) * WIDTH


@triton.jit
def row_pointers(base, rows, D: tl.constexpr):
    """Pointers [N, D] to the rows at these offsets."""
    return base + rows[:, None] + tl.arange(0, D)[None, :]


@triton.jit
def load_block(pointers, valid, WIDTH: tl.constexpr, D: tl.constexpr, MASKED: tl.constexpr):
    """A block [N, D]; zeros past WIDTH and, if MASKED, where not valid."""
    if MASKED:
        if D == WIDTH:
            return tl.load(pointers, mask=valid[:, None], other=0.0)
        return tl.load(pointers, mask=valid[:, None] & (tl.arange(0, D) < WIDTH)[None, :], other=0.0)
    if D == WIDTH:
        return tl.load(pointers)
    return tl.load(pointers, mask=(tl.arange(0, D) < WIDTH)[None, :], other=0.0)


@triton.jit
def load_transposed(pointers, WIDTH: tl.constexpr, D: tl.constexpr):
    """The block [D, N] of which the transpose lies at these pointers [N, D]; zeros past WIDTH. A left operand has to be
    loaded like that: what is transposed after loading is not fetched ahead."""
    if D == WIDTH:
        return tl.load(tl.trans(pointers))
    return tl.load(tl.trans(pointers), mask=(tl.arange(0, D) < WIDTH)[:, None], other=0.0)


@triton.jit
def load_keys(pointers, valid, HEAD_DIM: tl.constexpr, D: tl.constexpr, KIND: tl.constexpr):
    """Keys -> [N, D] of the element type KIND. What is not valid may hold anything: its scores are masked."""
    return from_cache(load_block(pointers, valid, HEAD_DIM, D, False), KIND)


@triton.jit
def load_values(pointers, valid, HEAD_DIM: tl.constexpr, D: tl.constexpr, MASKED: tl.constexpr, KIND: tl.constexpr):
    """Values -> [N, D] of the element type KIND, zeros where not valid, since 0 x NaN is NaN."""
    return from_cache(load_block(pointers, valid, HEAD_DIM, D, MASKED), KIND)


@triton.jit
def matmul(a, b, acc, WIDE: tl.constexpr):
    """a b + acc in float32; acc may be None. WIDE: widen the operands first (Triton's interpreter multiplies
    bfloat16 wrongly, and makes it wrongly of integers)."""
    if WIDE:
        return tl.dot(a.to(tl.float32), b.to(tl.float32), acc, input_precision="ieee")
    return tl.dot(a, b, acc, input_precision="ieee")


@triton.jit
def weigh(scores, peak, total, scale):
    """A step of the online softmax (Milakov and Gimelshein 2018) in base 2.

    scores: [M, N], -inf where masked; peak, total: [M] running maximum of scale x scores, and sum.
    Returns (weights [M, N], fade [M] of what was summed before, peak, total).
    """
    higher = tl.maximum(peak, tl.max(scores, 1) * scale)
    weights = tl.exp2(scores * scale - higher[:, None])
    fade = tl.exp2(peak - higher)
    return weights, fade, higher, total * fade + tl.sum(weights, 1)


@triton.jit
def component_of(column, BITS: tl.constexpr, WIDTH: tl.constexpr, D: tl.constexpr):
    """Which component of a head is in this column, when the planes of codes (``code_planes``) lie side by side, D
    columns each; WIDTH: of them in use. Without codes (BITS 0), columns are components."""
    if BITS == 0:
        return column
    return column // (2 * D) * (2 * WIDTH) + column % D * 2 + column // D % 2


@triton.jit
def largest_of(x):
    """The largest magnitude in a block; what is infinite or no number, and spoils its own row alone, is left out."""
    ordinary = tl.where(tl.abs(x) < float("inf"), tl.abs(x), 0.0)
    return tl.max(tl.max(ordinary, 1), 0)


@triton.jit
def query_unit(largest):
    """(unit, 1 / unit), powers of two: float16 holds queries that are multiples of the unit, of up to this magnitude,
    as exactly as bfloat16 does, if they are not negligible."""
    power = tl.minimum(power_below(largest), 8.507059173023462e37)  # 2^126
    return power * 0.0009765625, inverse_power(power) * 1024.0


@triton.jit
def code_scores(
    first, second, third, fourth, lift, sums, words, scale, middle, BITS: tl.constexpr, WIDE: tl.constexpr
):  # fmt: skip
    """k q^T [N, M] of keys that are words of codes [N, D]: a number is middle + scale x code. first and so on [D, M],
    lift [M]: of ``lowered``, of 8 bits the first two; sums: [M] of all of a query."""
    a, b, c, d = raised_planes(words, BITS, first.dtype)
    scores = tl.zeros([words.shape[0], first.shape[1]], tl.float32) + lift[None, :]
    scores = matmul(b, second, matmul(a, first, scores, WIDE), WIDE)
    if BITS == 4:
        scores = matmul(d, fourth, matmul(c, third, scores, WIDE), WIDE)
    return scores * scale[:, None] + sums[None, :] * middle[:, None]


@triton.jit
def code_weights(scores, peak, total, shift, scale, v_scale, v_middle, unit, KIND: tl.constexpr):
    """``weigh`` of scores [N, M], and what codes of values are multiplied with instead of its weights: weights x
    v_scale, as multiples of a unit so that float16 holds them. unit: of the blocks before, a power of two of at least
    2^-38; v_scale, v_middle: [N]; shift: [M], the sum of weights x v_middle.

    Returns (weights of KIND, fade [M] in which the change of the unit is taken into account, peak, total, shift, unit).
    """
    higher = tl.maximum(peak, tl.max(scores, 0) * scale)
    weights = tl.exp2(scores * scale - higher[None, :])
    fade = tl.exp2(peak - higher)
    total = total * fade + tl.sum(weights, 0)
    shift = shift * fade + tl.sum(weights * v_middle[:, None], 0)
    larger = tl.maximum(unit, power_below(tl.max(v_scale, 0)) * 6.103515625e-05)  # 2^-14: weights stay below 2^15
    inverse = inverse_power(larger)
    return (weights * (v_scale * inverse)[:, None]).to(KIND), fade * (unit * inverse), higher, total, shift, larger
