"""Writes new keys and values into the cache."""
# Triton compiles these functions; its parameters have no Python types, and constants are named as such.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

from pymllm.layers.kernels.storage_triton import to_cache


@triton.jit(do_not_specialize=["slots", "tokens"])
def write_kernel(
    k_cache, v_cache, k, v, slots, tokens,
    K_STRIDE: tl.constexpr, V_STRIDE: tl.constexpr, PAGE: tl.constexpr, PAGE_STRIDE: tl.constexpr,
    HEAD_STRIDE: tl.constexpr, KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Grid: (T * KV_HEADS / ROWS,), rounded up. k, v: [T, KV_HEADS, HEAD_DIM], tokens their STRIDE apart."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    token = (row // KV_HEADS).to(tl.int64)
    head = row % KV_HEADS
    live = token < tokens
    slot = tl.load(slots + token, mask=live, other=0)
    column = tl.arange(0, D)[None, :]
    shown = live[:, None] & (column < HEAD_DIM)
    source = (head * HEAD_DIM)[:, None] + column
    target = (slot // PAGE * PAGE_STRIDE + head * HEAD_STRIDE + slot % PAGE * HEAD_DIM)[:, None] + column
    kind: tl.constexpr = k_cache.dtype.element_ty
    keys = tl.load(k + token[:, None] * K_STRIDE + source, mask=shown).to(tl.float32)
    values = tl.load(v + token[:, None] * V_STRIDE + source, mask=shown).to(tl.float32)
    tl.store(k_cache + target, to_cache(keys, kind), mask=shown)
    tl.store(v_cache + target, to_cache(values, kind), mask=shown)
