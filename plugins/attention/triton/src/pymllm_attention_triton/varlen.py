"""Attention without pages and without causality inside each sequence of a packed batch (vision towers).

A head size such as 72 is computed as 64 + 16 columns instead of being padded to 128.
"""
# Triton compiles these functions; its parameters have no Python types, and constants are named as such.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

from pymllm.layers.kernels.dependent import launch_dependents, wait
from pymllm_attention_triton.blocks import find_block, load_block, matmul, row_pointers, weigh


@triton.jit(do_not_specialize=["starts", "sequences"])
def varlen_kernel(
    out, q, k, v, starts, scale, sequences,
    Q_STRIDE: tl.constexpr, K_STRIDE: tl.constexpr, V_STRIDE: tl.constexpr, HEADS: tl.constexpr, GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr, MAIN: tl.constexpr, REST: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, LANES: tl.constexpr, WIDE: tl.constexpr, STAGES: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Grid: (at least the number of blocks, HEADS). out: [T, H, HEAD_DIM]; q: [T, H, HEAD_DIM];
    k, v: [T, H / GROUP, HEAD_DIM], rows their STRIDE apart; starts: [sequences + 1]. The head size is computed
    as MAIN + REST columns; REST may be 0."""
    launch_dependents(PDL)
    wait(PDL)
    head = tl.program_id(1)
    sequence, block = find_block(starts, sequences, tl.program_id(0), BLOCK_M, LANES, False)
    if sequence >= sequences:
        return
    begin = tl.load(starts + sequence)
    length = tl.load(starts + sequence + 1) - begin
    MAIN_WIDTH: tl.constexpr = MAIN if HEAD_DIM > MAIN else HEAD_DIM
    REST_WIDTH: tl.constexpr = HEAD_DIM - MAIN_WIDTH

    row = block * BLOCK_M + tl.arange(0, BLOCK_M)
    live = row < length
    line = (begin + row).to(tl.int64)
    queries = q + head * HEAD_DIM
    q_main = load_block(row_pointers(queries, line * Q_STRIDE, MAIN), live, MAIN_WIDTH, MAIN, True)
    if REST > 0:
        q_rest = load_block(row_pointers(queries + MAIN, line * Q_STRIDE, REST), live, REST_WIDTH, REST, True)
        rest = tl.zeros([BLOCK_M, REST], tl.float32)
    keys = k + begin.to(tl.int64) * K_STRIDE + head // GROUP * HEAD_DIM
    values = v + begin.to(tl.int64) * V_STRIDE + head // GROUP * HEAD_DIM
    peak = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    main = tl.zeros([BLOCK_M, MAIN], tl.float32)
    for start in tl.range(0, length, BLOCK_N, num_stages=STAGES):
        position = start + tl.arange(0, BLOCK_N)
        valid = position < length
        k_rows = position.to(tl.int64) * K_STRIDE
        v_rows = position.to(tl.int64) * V_STRIDE
        k_main = load_block(row_pointers(keys, k_rows, MAIN), valid, MAIN_WIDTH, MAIN, True)
        scores = matmul(q_main, tl.trans(k_main), None, WIDE)
        if REST > 0:
            k_rest = load_block(row_pointers(keys + MAIN, k_rows, REST), valid, REST_WIDTH, REST, True)
            scores = matmul(q_rest, tl.trans(k_rest), scores, WIDE)
        scores = tl.where(valid[None, :], scores, float("-inf"))
        weights, fade, peak, total = weigh(scores, peak, total, scale)
        v_main = load_block(row_pointers(values, v_rows, MAIN), valid, MAIN_WIDTH, MAIN, True)
        main = matmul(weights.to(v_main.dtype), v_main, main * fade[:, None], WIDE)
        if REST > 0:
            v_rest = load_block(row_pointers(values + MAIN, v_rows, REST), valid, REST_WIDTH, REST, True)
            rest = matmul(weights.to(v_rest.dtype), v_rest, rest * fade[:, None], WIDE)

    target = out + line[:, None] * (HEADS * HEAD_DIM) + head * HEAD_DIM
    column = tl.arange(0, MAIN)
    shown = live[:, None] & (column < MAIN_WIDTH)[None, :]
    tl.store(target + column[None, :], (main / total[:, None]).to(out.dtype.element_ty), mask=shown)
    if REST > 0:
        column = tl.arange(0, REST)
        shown = live[:, None] & (column < REST_WIDTH)[None, :]
        tl.store(target + MAIN + column[None, :], (rest / total[:, None]).to(out.dtype.element_ty), mask=shown)
