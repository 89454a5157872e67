"""What the attention kernels are built of: where rows lie, how blocks are loaded, one step of the softmax.

Shape suffixes: M query rows of a program, N keys of a block, D head size padded to a power of two.
"""
# Triton compiles these functions; its parameters have no Python types, and constants are named as such.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

from pymllm.layers.kernels.codes_triton import half_codes
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
def code_scores(queries, upper, sums, codes, scale, middle, BITS: tl.constexpr, WIDE: tl.constexpr):
    """q k^T [M, N] of keys that are codes [N, D]: a number is middle + scale x code. queries: [M, D], what they are
    multiplied with; upper: of 4 bits, what the codes in the upper halves of bytes are; sums: [M] of all of a query."""
    kind: tl.constexpr = tl.float32 if WIDE else queries.dtype
    if BITS == 4:
        scores = matmul(queries, tl.trans(half_codes(codes, False, kind, WIDE)), None, WIDE)
        scores = matmul(upper, tl.trans(half_codes(codes, True, kind, WIDE)), scores, WIDE)
    else:
        scores = matmul(queries, tl.trans(codes.to(kind)), None, WIDE)
    return scores * scale[None, :] + sums[:, None] * middle[None, :]


@triton.jit
def add_codes(acc, weights, codes, scale, middle, KIND: tl.constexpr, WIDE: tl.constexpr):
    """acc + weights v, of values that are middle + scale x code; codes: [N, D] of the element type KIND. The middles
    are left out (:func:`add_middles`), but not of float16: it cannot hold weights times scales, so values are made
    whole."""
    if tl.float16 == KIND:
        values = codes.to(tl.float32) * scale[:, None] + middle[:, None]
        return matmul(weights.to(KIND), values.to(KIND), acc, WIDE)
    return matmul((weights * scale[None, :]).to(KIND), codes, acc, WIDE)


@triton.jit
def add_middles(shift, weights, middle, KIND: tl.constexpr):
    """shift [M] + weights middle: what :func:`add_codes` left out of every component."""
    if tl.float16 == KIND:
        return shift
    return shift + tl.sum(weights * middle[None, :], 1)
