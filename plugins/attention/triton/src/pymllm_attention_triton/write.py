"""Writes new keys and values into the cache."""
# Triton compiles these functions; its parameters have no Python types, and constants are named as such.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

from pymllm.layers.kernels.codes_triton import finite, make_codes, make_scales
from pymllm.layers.kernels.storage_triton import to_cache


@triton.jit
def put_codes(
    target, scales, x, upper, live, shown, HEAD_DIM: tl.constexpr, D: tl.constexpr, BITS: tl.constexpr,
):  # fmt: skip
    """Quantize and store vectors; target: [ROWS, D] pointers to codes, scales: [ROWS]; x: [ROWS, D] float32, of 4 bits
    the lower half of each vector; upper: then the other, otherwise x."""
    inside = (tl.arange(0, D) < (HEAD_DIM // 2 if BITS == 4 else HEAD_DIM))[None, :]
    broken = tl.max((inside & ((x != x) | (upper != upper))).to(tl.int32), 1)
    x, upper = finite(x), finite(upper)
    least = tl.min(tl.where(inside, tl.minimum(x, upper), float("inf")), 1)
    largest = tl.max(tl.where(inside, tl.maximum(x, upper), float("-inf")), 1)
    word, scale, offset = make_scales(least, largest, broken, BITS)
    tl.store(scales, word, mask=live)
    codes = make_codes(x, scale[:, None], offset[:, None], BITS)
    if BITS == 4:
        codes = codes | (make_codes(upper, scale[:, None], offset[:, None], BITS) << 4)
        tl.store(target, codes.to(tl.uint8), mask=shown)
    else:
        tl.store(target, (codes - 128).to(tl.int8), mask=shown)


@triton.jit(do_not_specialize=["slots", "tokens"])
def write_kernel(
    k_cache, v_cache, k_scales, v_scales, k, v, slots, tokens, BITS: tl.constexpr,
    K_STRIDE: tl.constexpr, V_STRIDE: tl.constexpr, PAGE: tl.constexpr, PAGE_STRIDE: tl.constexpr,
    HEAD_STRIDE: tl.constexpr, KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Grid: (T * KV_HEADS / ROWS,), rounded up. k, v: [T, KV_HEADS, HEAD_DIM], tokens their STRIDE apart. BITS: of the
    codes that the cache holds, with scales; 0: it holds numbers. A row of it is D columns."""
    WIDTH: tl.constexpr = HEAD_DIM // 2 if BITS == 4 else HEAD_DIM
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    token = (row // KV_HEADS).to(tl.int64)
    head = row % KV_HEADS
    live = token < tokens
    slot = tl.load(slots + token, mask=live, other=0)
    column = tl.arange(0, D)[None, :]
    shown = live[:, None] & (column < WIDTH)
    source = (head * HEAD_DIM)[:, None] + column
    target = (slot // PAGE * PAGE_STRIDE + head * HEAD_STRIDE + slot % PAGE * WIDTH)[:, None] + column
    k_source, v_source = k + token[:, None] * K_STRIDE + source, v + token[:, None] * V_STRIDE + source
    keys = tl.load(k_source, mask=shown, other=0.0).to(tl.float32)
    values = tl.load(v_source, mask=shown, other=0.0).to(tl.float32)
    if BITS == 0:
        kind: tl.constexpr = k_cache.dtype.element_ty
        tl.store(k_cache + target, to_cache(keys, kind), mask=shown)
        tl.store(v_cache + target, to_cache(values, kind), mask=shown)
    else:
        mark = slot // PAGE * (PAGE_STRIDE // 4) + head * (HEAD_STRIDE // 4) + slot % PAGE
        upper_keys, upper_values = keys, values
        if BITS == 4:
            upper_keys = tl.load(k_source + WIDTH, mask=shown, other=0.0).to(tl.float32)
            upper_values = tl.load(v_source + WIDTH, mask=shown, other=0.0).to(tl.float32)
        put_codes(k_cache + target, k_scales + mark, keys, upper_keys, live, shown, HEAD_DIM, D, BITS)
        put_codes(v_cache + target, v_scales + mark, values, upper_values, live, shown, HEAD_DIM, D, BITS)
