"""Attention of many new tokens a request: FlashAttention-2 (Dao 2023) over pages, causal, after any prefix.

A program takes a block of new tokens of one request and all query heads of one KV head: its rows are
(token, head) pairs. Blocks of keys that every row sees are read without masks; the rest, at most the
block's own span, with them.
"""
# Triton compiles these functions; its parameters have no Python types, and constants are named as such.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

from pymllm.layers.kernels.codes_triton import code_numbers, load_scales, whole_codes
from pymllm.layers.kernels.dependent import launch_dependents, wait
from pymllm_attention_triton.blocks import (
    component_of,
    find_block,
    largest_of,
    load_block,
    load_keys,
    load_values,
    matmul,
    page_numbers,
    page_rows,
    query_unit,
    row_pointers,
    weigh,
)


@triton.jit
def score_codes(
    queries, sums, places, marks, valid, WIDTH: tl.constexpr, D: tl.constexpr, BITS: tl.constexpr, WIDE: tl.constexpr
):  # fmt: skip
    """q k^T [M, N] of keys that are rows of codes at these places. They are multiplied as they are: float16 numbers
    made of them would be off by 2^-12, which sharp scores of float16 activations show. sums: [M] of all of a query."""
    codes = whole_codes(load_block(places, valid, WIDTH, D, False), BITS, queries.dtype)
    scale, middle = load_scales(marks, valid, BITS)
    return matmul(queries, tl.trans(codes), None, WIDE) * scale[None, :] + sums[:, None] * middle[None, :]


@triton.jit
def load_numbers(
    places, marks, valid, WIDTH: tl.constexpr, D: tl.constexpr, BITS: tl.constexpr, KIND: tl.constexpr
):  # fmt: skip
    """Half of the numbers (``code_numbers``) that rows of codes at these places, and their scales, stand for."""
    words = load_block(places, valid, WIDTH, D, False)
    scale, middle = load_scales(marks, valid, BITS)
    return code_numbers(words, scale, middle, BITS, KIND)


@triton.jit(do_not_specialize=["contexts", "starts", "table", "table_stride", "requests"])
def prefill_kernel(
    out, q, cache, scales, table, contexts, starts, scale, table_stride, requests,
    BITS: tl.constexpr,
    Q_STRIDE: tl.constexpr, PAGE: tl.constexpr, PAGE_STRIDE: tl.constexpr, HEAD_STRIDE: tl.constexpr,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, D: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, LANES: tl.constexpr, WIDE: tl.constexpr, STAGES: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Grid: (KV_HEADS, at least the number of blocks). Requests with one new token are left out.
    out: [T, H, HEAD_DIM]; q: [T, H, HEAD_DIM], rows Q_STRIDE apart. BITS, scales, D: as of ``decode_kernel``."""
    SPAN: tl.constexpr = 16 // BITS if BITS > 0 else 1
    WIDTH: tl.constexpr = HEAD_DIM // SPAN
    WHOLE: tl.constexpr = D * SPAN
    TOKENS: tl.constexpr = BLOCK_M // GROUP
    launch_dependents(PDL)
    wait(PDL)
    kv_head = tl.program_id(0)
    # Later blocks see more keys: they start first.
    item = tl.num_programs(1) - 1 - tl.program_id(1)
    request, block = find_block(starts, requests, item, TOKENS, LANES, True)
    if request >= requests:
        return
    begin = tl.load(starts + request)
    new = tl.load(starts + request + 1) - begin
    context = tl.load(contexts + request)

    row = tl.arange(0, BLOCK_M)
    column = tl.arange(0, WHOLE)
    token = block * TOKENS + row // GROUP
    shown = ((row < TOKENS * GROUP) & (token < new))[:, None] & (column % D < WIDTH)[None, :]
    place = (kv_head * GROUP + row % GROUP)[:, None] * HEAD_DIM + component_of(column, BITS, WIDTH, D)[None, :]
    line = (begin + token).to(tl.int64)[:, None]
    queries = tl.load(q + line * Q_STRIDE + place, mask=shown, other=0.0)
    pages = table + request.to(tl.int64) * table_stride
    keys = cache + kv_head * HEAD_STRIDE
    if BITS > 0:
        kind: tl.constexpr = tl.float32 if WIDE or q.dtype.element_ty == tl.float32 else tl.float16
        key_scales = scales + kv_head * (HEAD_STRIDE // 2)
        queries = queries.to(tl.float32)
        unit, factor = query_unit(largest_of(queries))
        q_sums = tl.sum(queries, 1) * factor
        queries = (queries * factor).to(kind)
        scale *= unit

    peak = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, WHOLE], tl.float32)
    first = context - new + block * TOKENS
    whole = (first + 1) // BLOCK_N * BLOCK_N
    for start in tl.range(0, whole, BLOCK_N, num_stages=STAGES):
        position = start + tl.arange(0, BLOCK_N)
        valid = position < whole
        numbers = page_numbers(pages, position, valid, PAGE)
        places = row_pointers(keys, page_rows(numbers, position, PAGE, PAGE_STRIDE, WIDTH), D)
        if BITS == 0:
            k = load_keys(places, valid, HEAD_DIM, D, q.dtype.element_ty)
            v = load_values(places + PAGE * HEAD_DIM, valid, HEAD_DIM, D, False, q.dtype.element_ty)
            scores = matmul(queries, tl.trans(k), None, WIDE)
        else:
            marks = key_scales + page_rows(numbers, position, PAGE, PAGE_STRIDE // 2, 1)
            scores = score_codes(queries, q_sums, places, marks, valid, WIDTH, D, BITS, WIDE)
            v = load_numbers(places + PAGE * WIDTH, marks + PAGE, valid, WIDTH, D, BITS, kind)
        weights, fade, peak, total = weigh(scores, peak, total, scale)
        acc = matmul(weights.to(v.dtype), v, acc * fade[:, None], WIDE)
    for start in tl.range(whole, tl.minimum(first + TOKENS, context), BLOCK_N, num_stages=STAGES):
        position = start + tl.arange(0, BLOCK_N)
        valid = position < context
        seen = (position[None, :] <= (context - new + token)[:, None]) & valid[None, :]
        numbers = page_numbers(pages, position, valid, PAGE)
        places = row_pointers(keys, page_rows(numbers, position, PAGE, PAGE_STRIDE, WIDTH), D)
        if BITS == 0:
            k = load_keys(places, valid, HEAD_DIM, D, q.dtype.element_ty)
            v = load_values(places + PAGE * HEAD_DIM, valid, HEAD_DIM, D, True, q.dtype.element_ty)
            scores = matmul(queries, tl.trans(k), None, WIDE)
        else:
            marks = key_scales + page_rows(numbers, position, PAGE, PAGE_STRIDE // 2, 1)
            scores = score_codes(queries, q_sums, places, marks, valid, WIDTH, D, BITS, WIDE)
            v = load_numbers(places + PAGE * WIDTH, marks + PAGE, valid, WIDTH, D, BITS, kind)
        weights, fade, peak, total = weigh(tl.where(seen, scores, float("-inf")), peak, total, scale)
        acc = matmul(weights.to(v.dtype), v, acc * fade[:, None], WIDE)
    acc = acc / total[:, None]
    if BITS > 0:
        acc *= 2.0
    target = out + line * (KV_HEADS * GROUP * HEAD_DIM) + place
    tl.store(target, acc.to(out.dtype.element_ty), mask=shown)
