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

from pymllm.layers.kernels.codes_triton import half_codes, load_scales
from pymllm.layers.kernels.dependent import launch_dependents, wait
from pymllm_attention_triton.blocks import (
    add_codes,
    add_middles,
    code_scores,
    find_block,
    load_block,
    load_keys,
    load_values,
    matmul,
    page_numbers,
    page_rows,
    row_pointers,
    weigh,
)


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
    WIDTH: tl.constexpr = HEAD_DIM // 2 if BITS == 4 else HEAD_DIM
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
    column = tl.arange(0, D)
    token = block * TOKENS + row // GROUP
    shown = ((row < TOKENS * GROUP) & (token < new))[:, None] & (column < WIDTH)[None, :]
    place = (kv_head * GROUP + row % GROUP)[:, None] * HEAD_DIM + column[None, :]
    line = (begin + token).to(tl.int64)[:, None]
    queries = tl.load(q + line * Q_STRIDE + place, mask=shown, other=0.0)
    upper = queries
    if BITS == 4:
        upper = tl.load(q + line * Q_STRIDE + WIDTH + place, mask=shown, other=0.0)
    pages = table + request.to(tl.int64) * table_stride
    keys = cache + kv_head * HEAD_STRIDE

    peak = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, D], tl.float32)
    if BITS > 0:
        kind: tl.constexpr = tl.float32 if WIDE and q.dtype.element_ty == tl.bfloat16 else q.dtype.element_ty
        key_scales = scales + kv_head * (HEAD_STRIDE // 4)
        query_sums = tl.sum(queries.to(tl.float32), 1)
        shift = tl.zeros([BLOCK_M], tl.float32)
        if BITS == 4:
            query_sums += tl.sum(upper.to(tl.float32), 1)
            acc_upper = tl.zeros([BLOCK_M, D], tl.float32)
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
            weights, fade, peak, total = weigh(matmul(queries, tl.trans(k), None, WIDE), peak, total, scale)
            acc = matmul(weights.to(v.dtype), v, acc * fade[:, None], WIDE)
        else:
            marks = key_scales + page_rows(numbers, position, PAGE, PAGE_STRIDE // 4, 1)
            k = load_block(places, valid, WIDTH, D, False)
            v = load_block(places + PAGE * WIDTH, valid, WIDTH, D, False)
            k_scale, k_middle = load_scales(marks, valid, BITS)
            v_scale, v_middle = load_scales(marks + PAGE, valid, BITS)
            scores = code_scores(queries, upper, query_sums, k, k_scale, k_middle, BITS, WIDE)
            weights, fade, peak, total = weigh(scores, peak, total, scale)
            shift = add_middles(shift * fade, weights, v_middle, kind)
            if BITS == 4:
                lower = half_codes(v, False, kind, WIDE)
                acc = add_codes(acc * fade[:, None], weights, lower, v_scale, v_middle, kind, WIDE)
                higher = half_codes(v, True, kind, WIDE)
                acc_upper = add_codes(acc_upper * fade[:, None], weights, higher, v_scale, v_middle, kind, WIDE)
            else:
                acc = add_codes(acc * fade[:, None], weights, v.to(kind), v_scale, v_middle, kind, WIDE)
    for start in tl.range(whole, tl.minimum(first + TOKENS, context), BLOCK_N, num_stages=STAGES):
        position = start + tl.arange(0, BLOCK_N)
        valid = position < context
        seen = (position[None, :] <= (context - new + token)[:, None]) & valid[None, :]
        numbers = page_numbers(pages, position, valid, PAGE)
        places = row_pointers(keys, page_rows(numbers, position, PAGE, PAGE_STRIDE, WIDTH), D)
        if BITS == 0:
            k = load_keys(places, valid, HEAD_DIM, D, q.dtype.element_ty)
            v = load_values(places + PAGE * HEAD_DIM, valid, HEAD_DIM, D, True, q.dtype.element_ty)
            scores = tl.where(seen, matmul(queries, tl.trans(k), None, WIDE), float("-inf"))
            weights, fade, peak, total = weigh(scores, peak, total, scale)
            acc = matmul(weights.to(v.dtype), v, acc * fade[:, None], WIDE)
        else:
            marks = key_scales + page_rows(numbers, position, PAGE, PAGE_STRIDE // 4, 1)
            k = load_block(places, valid, WIDTH, D, False)
            v = load_block(places + PAGE * WIDTH, valid, WIDTH, D, False)
            k_scale, k_middle = load_scales(marks, valid, BITS)
            v_scale, v_middle = load_scales(marks + PAGE, valid, BITS)
            scores = code_scores(queries, upper, query_sums, k, k_scale, k_middle, BITS, WIDE)
            weights, fade, peak, total = weigh(tl.where(seen, scores, float("-inf")), peak, total, scale)
            shift = add_middles(shift * fade, weights, v_middle, kind)
            if BITS == 4:
                lower = half_codes(v, False, kind, WIDE)
                acc = add_codes(acc * fade[:, None], weights, lower, v_scale, v_middle, kind, WIDE)
                higher = half_codes(v, True, kind, WIDE)
                acc_upper = add_codes(acc_upper * fade[:, None], weights, higher, v_scale, v_middle, kind, WIDE)
            else:
                acc = add_codes(acc * fade[:, None], weights, v.to(kind), v_scale, v_middle, kind, WIDE)
    if BITS > 0:
        acc += shift[:, None]
    acc = acc / total[:, None]
    target = out + line * (KV_HEADS * GROUP * HEAD_DIM) + place
    tl.store(target, acc.to(out.dtype.element_ty), mask=shown)
    if BITS == 4:
        acc_upper = (acc_upper + shift[:, None]) / total[:, None]
        tl.store(target + WIDTH, acc_upper.to(out.dtype.element_ty), mask=shown)
