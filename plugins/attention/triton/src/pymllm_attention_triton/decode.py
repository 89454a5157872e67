"""Decode attention: one new token a request, its context split among programs (Flash-Decoding, Dao et al. 2023).

The query heads of one KV head are the rows of a product, so each key and value is read once. All contexts
of the batch are cut into chunks of one size, chosen on the device so that there are about ``target`` of
them: once a step, by a kernel of its own; program i works on chunk i. The grid depends on the batch size alone, so
a captured graph works for any later lengths. The last program of a request to finish merges the parts, always in
the same order.
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
    load_block,
    load_keys,
    load_values,
    matmul,
    page_numbers,
    page_rows,
    row_pointers,
    weigh,
)


@triton.jit
def decode_lengths(contexts, starts, lane, requests, MIXED: tl.constexpr):
    """Context lengths of the requests that decode; 0 for others and past the end."""
    inside = lane < requests
    length = tl.load(contexts + lane, mask=inside, other=0)
    if MIXED:
        new = tl.load(starts + lane + 1, mask=inside, other=0) - tl.load(starts + lane, mask=inside, other=0)
        length = tl.where(new == 1, length, 0)
    return length


@triton.jit
def find_chunk(
    contexts, starts, requests, target, item, BLOCK_N: tl.constexpr, LANES: tl.constexpr, MIXED: tl.constexpr
):
    """(request, part, tokens of a chunk) of chunk number ``item``; request >= requests: there is none."""
    tokens = 0
    for base in range(0, requests, LANES):
        tokens += tl.sum(decode_lengths(contexts, starts, base + tl.arange(0, LANES), requests, MIXED), 0)
    chunk = (tokens + target * BLOCK_N - 1) // (target * BLOCK_N) * BLOCK_N
    chunk = tl.maximum(chunk, BLOCK_N)
    request = 0
    passed_parts = 0
    all_parts = 0
    for base in range(0, requests, LANES):
        length = decode_lengths(contexts, starts, base + tl.arange(0, LANES), requests, MIXED)
        parts = (length + chunk - 1) // chunk
        passed = all_parts + tl.cumsum(parts, 0) <= item
        request += tl.sum(passed.to(tl.int32), 0)
        passed_parts += tl.sum(tl.where(passed, parts, 0), 0)
        all_parts += tl.sum(parts, 0)
    return request, item - passed_parts, chunk


@triton.jit(do_not_specialize=["contexts", "starts", "requests", "target"])
def assign_kernel(
    chunks, contexts, starts, requests, target, BLOCK_N: tl.constexpr, LANES: tl.constexpr, MIXED: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Grid: (target + requests,). chunks: [target + requests, 4] int32; its first columns get ``find_chunk``'s."""
    launch_dependents(PDL)
    wait(PDL)
    item = tl.program_id(0)
    request, part, chunk = find_chunk(contexts, starts, requests, target, item, BLOCK_N, LANES, MIXED)
    row = chunks + item * 4
    tl.store(row, request)
    tl.store(row + 1, part)
    tl.store(row + 2, chunk)


@triton.jit
def merge(sums, peaks, parts, PART_STRIDE: tl.constexpr, ROWS: tl.constexpr, D: tl.constexpr, GROUP: tl.constexpr,
          AT_ONCE: tl.constexpr):  # fmt: skip
    """Weighted mean of the parts' results -> [ROWS, D]. sums: of part 0, [GROUP, D]; peaks: log2 of the
    softmax sums, [GROUP]; PART_STRIDE: rows between parts."""
    row = tl.arange(0, ROWS)
    column = tl.arange(0, D)
    peak = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, D], tl.float32)
    for base in range(0, parts, AT_ONCE):
        part = base + tl.arange(0, AT_ONCE)
        live = (part < parts)[:, None] & (row < GROUP)[None, :]
        index = part[:, None] * PART_STRIDE + row[None, :]
        weight = tl.load(peaks + index, mask=live, other=float("-inf"), cache_modifier=".cg")
        values = tl.load(
            sums + index[:, :, None] * D + column[None, None, :], mask=live[:, :, None], other=0.0, cache_modifier=".cg"
        )
        higher = tl.maximum(peak, tl.max(weight, 0))
        higher = tl.where(row < GROUP, higher, 0.0)
        weight = tl.exp2(weight - higher[None, :])
        fade = tl.exp2(peak - higher)
        total = total * fade + tl.sum(weight, 0)
        acc = acc * fade[:, None] + tl.sum(values * weight[:, :, None], 0)
        peak = higher
    return acc / total[:, None]


@triton.jit(do_not_specialize=["contexts", "starts", "table", "table_stride", "requests", "counters"])
def decode_kernel(
    out, q, cache, scales, sums, peaks, counters, chunks, table, contexts, starts, scale, table_stride, requests,
    BITS: tl.constexpr,
    Q_STRIDE: tl.constexpr, PAGE: tl.constexpr, PAGE_STRIDE: tl.constexpr, HEAD_STRIDE: tl.constexpr,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, ROWS: tl.constexpr, MERGE_ROWS: tl.constexpr, AT_ONCE: tl.constexpr,
    HEAD_DIM: tl.constexpr, D: tl.constexpr, BLOCK_N: tl.constexpr, MIXED: tl.constexpr, WIDE: tl.constexpr,
    STAGES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Grid: (KV_HEADS, target + requests). out: [T, H, HEAD_DIM]; q: [T, H, HEAD_DIM], rows Q_STRIDE apart;
    chunks: of ``assign_kernel``; sums: [chunks, H, WHOLE] and peaks: [chunks, H], float32, scratch; counters:
    [requests, KV_HEADS], zeros. BITS: of the codes that the cache holds, with their scales; 0: it holds numbers. A row
    of the cache is computed as D columns, which of 4 bits are the lower half of a head; WHOLE columns are both."""
    WIDTH: tl.constexpr = HEAD_DIM // 2 if BITS == 4 else HEAD_DIM
    WHOLE: tl.constexpr = 2 * D if BITS == 4 else D
    launch_dependents(PDL)
    wait(PDL)
    kv_head = tl.program_id(0)
    item = tl.program_id(1)
    request = tl.load(chunks + item * 4)
    part = tl.load(chunks + item * 4 + 1)
    chunk = tl.load(chunks + item * 4 + 2)
    if request >= requests:
        return
    length = tl.load(contexts + request)
    parts = (length + chunk - 1) // chunk
    stop = tl.minimum(part * chunk + chunk, length)
    token = tl.load(starts + request) if MIXED else request

    row = tl.arange(0, ROWS)
    column = tl.arange(0, D)
    head = kv_head * GROUP + row
    shown = (row < GROUP)[:, None] & (column < WIDTH)[None, :]
    place = head[:, None] * HEAD_DIM + column[None, :]
    queries = tl.load(q + token.to(tl.int64) * Q_STRIDE + place, mask=shown, other=0.0)
    upper = queries
    if BITS == 4:
        upper = tl.load(q + token.to(tl.int64) * Q_STRIDE + WIDTH + place, mask=shown, other=0.0)
    pages = table + request.to(tl.int64) * table_stride
    keys = cache + kv_head * HEAD_STRIDE

    peak = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, D], tl.float32)
    if BITS > 0:
        kind: tl.constexpr = tl.float32 if WIDE and q.dtype.element_ty == tl.bfloat16 else q.dtype.element_ty
        key_scales = scales + kv_head * (HEAD_STRIDE // 4)
        query_sums = tl.sum(queries.to(tl.float32), 1)
        shift = tl.zeros([ROWS], tl.float32)
        if BITS == 4:
            query_sums += tl.sum(upper.to(tl.float32), 1)
            acc_upper = tl.zeros([ROWS, D], tl.float32)
    for start in tl.range(part * chunk, stop, BLOCK_N, num_stages=STAGES):
        position = start + tl.arange(0, BLOCK_N)
        valid = position < stop
        numbers = page_numbers(pages, position, valid, PAGE)
        places = row_pointers(keys, page_rows(numbers, position, PAGE, PAGE_STRIDE, WIDTH), D)
        if BITS == 0:
            k = load_keys(places, valid, HEAD_DIM, D, q.dtype.element_ty)
            v = load_values(places + PAGE * HEAD_DIM, valid, HEAD_DIM, D, True, q.dtype.element_ty)
            scores = tl.where(valid[None, :], matmul(queries, tl.trans(k), None, WIDE), float("-inf"))
            weights, fade, peak, total = weigh(scores, peak, total, scale)
            acc = matmul(weights.to(v.dtype), v, acc * fade[:, None], WIDE)
        else:
            marks = key_scales + page_rows(numbers, position, PAGE, PAGE_STRIDE // 4, 1)
            k = load_block(places, valid, WIDTH, D, False)
            v = load_block(places + PAGE * WIDTH, valid, WIDTH, D, False)
            k_scale, k_middle = load_scales(marks, valid, BITS)
            v_scale, v_middle = load_scales(marks + PAGE, valid, BITS)
            scores = code_scores(queries, upper, query_sums, k, k_scale, k_middle, BITS, WIDE)
            weights, fade, peak, total = weigh(tl.where(valid[None, :], scores, float("-inf")), peak, total, scale)
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
    if BITS == 4:
        acc_upper = (acc_upper + shift[:, None]) / total[:, None]

    target_rows = out + token.to(tl.int64) * (KV_HEADS * GROUP * HEAD_DIM)
    if parts == 1:
        tl.store(target_rows + place, acc.to(out.dtype.element_ty), mask=shown)
        if BITS == 4:
            tl.store(target_rows + WIDTH + place, acc_upper.to(out.dtype.element_ty), mask=shown)
        return
    heads: tl.constexpr = KV_HEADS * GROUP
    sum_rows = sums + (item * heads + head)[:, None] * WHOLE + column[None, :]
    tl.store(sum_rows, acc, mask=(row < GROUP)[:, None])
    if BITS == 4:
        tl.store(sum_rows + D, acc_upper, mask=(row < GROUP)[:, None])
    tl.store(peaks + item * heads + head, peak + tl.log2(total), mask=row < GROUP)
    # The barrier orders all threads' stores before the release; the last program's acquire comes before its loads.
    tl.debug_barrier()
    counter = counters + request * KV_HEADS + kv_head
    if tl.atomic_add(counter, 1, sem="acq_rel") == parts - 1:
        first = (item - part) * heads + kv_head * GROUP
        merged = merge(sums + first * WHOLE, peaks + first, parts, heads, MERGE_ROWS, WHOLE, GROUP, AT_ONCE)
        line = tl.arange(0, MERGE_ROWS)
        every = tl.arange(0, WHOLE)
        live = (line < GROUP)[:, None] & (every % D < WIDTH)[None, :]
        spot = (kv_head * GROUP + line)[:, None] * HEAD_DIM + (every // D * WIDTH + every % D)[None, :]
        tl.store(target_rows + spot, merged.to(out.dtype.element_ty), mask=live)
        tl.store(counter, 0)
