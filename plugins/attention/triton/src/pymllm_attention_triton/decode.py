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

from pymllm.layers.kernels.codes_triton import code_planes, load_scales, lowered
from pymllm.layers.kernels.dependent import launch_dependents, wait
from pymllm_attention_triton.blocks import (
    code_scores,
    code_weights,
    component_of,
    largest_of,
    load_block,
    load_keys,
    load_transposed,
    load_values,
    matmul,
    page_numbers,
    page_rows,
    query_unit,
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
    [requests, KV_HEADS], zeros. BITS: of the codes that the cache holds in words (``code_planes``), with their scales;
    0: it holds numbers. A row of the cache is computed as D columns: numbers, or words of SPAN codes; WHOLE columns are
    all components, those of the first bytes of words first."""
    SPAN: tl.constexpr = 16 // BITS if BITS > 0 else 1
    WIDTH: tl.constexpr = HEAD_DIM // SPAN
    WHOLE: tl.constexpr = D * SPAN
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
    place = head[:, None] * HEAD_DIM + column[None, :] * (2 if BITS > 0 else 1)
    query_places = q + token.to(tl.int64) * Q_STRIDE + place
    pages = table + request.to(tl.int64) * table_stride
    keys = cache + kv_head * HEAD_STRIDE

    peak = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    if BITS == 0:
        acc = tl.zeros([ROWS, D], tl.float32)
        queries = tl.load(query_places, mask=shown, other=0.0)
    else:
        kind: tl.constexpr = tl.float32 if WIDE or q.dtype.element_ty == tl.float32 else tl.float16
        a = tl.load(query_places, mask=shown, other=0.0).to(tl.float32)
        b = tl.load(query_places + 1, mask=shown, other=0.0).to(tl.float32)
        c, d = a, b
        q_sums = tl.sum(a + b, 1)
        if BITS == 4:
            c = tl.load(query_places + 2 * WIDTH, mask=shown, other=0.0).to(tl.float32)
            d = tl.load(query_places + 2 * WIDTH + 1, mask=shown, other=0.0).to(tl.float32)
            q_sums += tl.sum(c + d, 1)
        largest = tl.maximum(tl.maximum(largest_of(a), largest_of(b)), tl.maximum(largest_of(c), largest_of(d)))
        q_unit, factor = query_unit(largest)
        q_sums *= factor
        a, b, c, d, lift = lowered(a * factor, b * factor, c * factor, d * factor, BITS, kind)
        a, b, c, d = tl.trans(a), tl.trans(b), tl.trans(c), tl.trans(d)
        scale *= q_unit
        key_scales = scales + kv_head * (HEAD_STRIDE // 2)
        shift = tl.zeros([ROWS], tl.float32)
        unit = 3.637978807091713e-12  # 2^-38
        sum_a = tl.zeros([D, ROWS], tl.float32)
        sum_b = tl.zeros([D, ROWS], tl.float32)
        if BITS == 4:
            sum_c = tl.zeros([D, ROWS], tl.float32)
            sum_d = tl.zeros([D, ROWS], tl.float32)
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
            marks = key_scales + page_rows(numbers, position, PAGE, PAGE_STRIDE // 2, 1)
            k = load_block(places, valid, WIDTH, D, False)
            v = load_transposed(places + PAGE * WIDTH, WIDTH, D)
            k_scale, k_middle = load_scales(marks, valid, BITS)
            v_scale, v_middle = load_scales(marks + PAGE, valid, BITS)
            scores = code_scores(a, b, c, d, lift, q_sums, k, k_scale, k_middle, BITS, WIDE)
            weights, fade, peak, total, shift, unit = code_weights(
                tl.where(valid[:, None], scores, float("-inf")),
                peak,
                total,
                shift,
                scale,
                v_scale,
                v_middle,
                unit,
                kind,
            )
            v_a, v_b, v_c, v_d = code_planes(v, BITS, kind)
            sum_a = matmul(v_a, weights, sum_a * fade[None, :], WIDE)
            sum_b = matmul(v_b, weights, sum_b * fade[None, :], WIDE)
            if BITS == 4:
                sum_c = matmul(v_c, weights, sum_c * fade[None, :], WIDE)
                sum_d = matmul(v_d, weights, sum_d * fade[None, :], WIDE)
    if BITS == 0:
        acc = acc / total[:, None]
    else:
        acc = tl.trans((sum_a * unit + shift[None, :]) / total[None, :])
        acc_b = tl.trans((sum_b * unit + shift[None, :]) / total[None, :])
        if BITS == 4:
            acc_c = tl.trans((sum_c * unit + shift[None, :]) / total[None, :])
            acc_d = tl.trans((sum_d * unit + shift[None, :]) / total[None, :])

    target_rows = out + token.to(tl.int64) * (KV_HEADS * GROUP * HEAD_DIM)
    if parts == 1:
        tl.store(target_rows + place, acc.to(out.dtype.element_ty), mask=shown)
        if BITS > 0:
            tl.store(target_rows + place + 1, acc_b.to(out.dtype.element_ty), mask=shown)
        if BITS == 4:
            tl.store(target_rows + place + 2 * WIDTH, acc_c.to(out.dtype.element_ty), mask=shown)
            tl.store(target_rows + place + 2 * WIDTH + 1, acc_d.to(out.dtype.element_ty), mask=shown)
        return
    heads: tl.constexpr = KV_HEADS * GROUP
    sum_rows = sums + (item * heads + head)[:, None] * WHOLE + column[None, :]
    tl.store(sum_rows, acc, mask=(row < GROUP)[:, None])
    if BITS > 0:
        tl.store(sum_rows + D, acc_b, mask=(row < GROUP)[:, None])
    if BITS == 4:
        tl.store(sum_rows + 2 * D, acc_c, mask=(row < GROUP)[:, None])
        tl.store(sum_rows + 3 * D, acc_d, mask=(row < GROUP)[:, None])
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
        spot = (kv_head * GROUP + line)[:, None] * HEAD_DIM + component_of(every, BITS, WIDTH, D)[None, :]
        tl.store(target_rows + spot, merged.to(out.dtype.element_ty), mask=live)
        tl.store(counter, 0)
