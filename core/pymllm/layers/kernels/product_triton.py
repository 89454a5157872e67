"""Triton kernels for y = x W^T with few rows of x, where reading W once is all that counts.

A norm before the product is linear but for one factor a row, 1 / sqrt(mean(x^2) + eps): the sum of squares is gathered
in the same pass over x, and the factor applied at the end. ``gemv_kernel`` multiplies and adds in float32 registers;
``dot_kernel`` uses tensor cores and may cut the sum over K among programs, of which the last to arrive adds the
parts in their order, so that results do not vary.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from pymllm.layers.kernels.dependent import launch_dependents, launch_options, prefetch, wait
from pymllm.layers.kernels.tiling import Tiling


@triton.jit
def _weight_tile(pointers, k, K: tl.constexpr, BLOCK_K: tl.constexpr):
    if K % BLOCK_K == 0:
        tile = tl.load(pointers)
    else:
        tile = tl.load(pointers, mask=(k < K)[None, :], other=0.0)
    return tile


@triton.jit
def _x_tile(x, k, rows, K: tl.constexpr, M: tl.constexpr):
    if M == 1:
        tile = tl.load(x + k, mask=k < K, other=0.0)
    else:
        m = tl.arange(0, M)
        inside = (m < rows)[:, None] & (k < K)[None, :]
        tile = tl.load(x + m[:, None] * K + k[None, :], mask=inside, other=0.0)
    return tile.to(tl.float32)


@triton.jit
def _multiply_add(total, w, x, M: tl.constexpr):
    if M == 1:
        total += w.to(tl.float32) * x[None, :]
    else:
        total += w.to(tl.float32)[None, :, :] * x[:, None, :]
    return total


@triton.jit
def _epilogue(y, u, out, bias, residual, n, rows, N, GATED: tl.constexpr, M: tl.constexpr):
    """y, u: [M, BLOCK_N] float32 -> out [rows, N]; u is y's partner where GATED."""
    inside = n < N
    if bias is not None:
        y += tl.load(bias + n, mask=inside, other=0.0).to(tl.float32)[None, :]
    if GATED:
        if bias is not None:
            u += tl.load(bias + N + n, mask=inside, other=0.0).to(tl.float32)[None, :]
        y = y / (1.0 + tl.exp(-y)) * u
    m = tl.arange(0, M)
    place = m[:, None].to(tl.int64) * N + n[None, :]
    mask = (m < rows)[:, None] & inside[None, :]
    if residual is not None:
        y += tl.load(residual + place, mask=mask, other=0.0).to(tl.float32)
    tl.store(out + place, y.to(out.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["rows"])
def gemv_kernel(
    x,
    weight,
    out,
    norm_weight,
    bias,
    residual,
    rows,
    eps,
    N,
    K: tl.constexpr,
    M: tl.constexpr,
    GATED: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PDL: tl.constexpr,
):
    """A program makes BLOCK_N outputs of all M rows. The next tile of W is always on its way, the first one before
    the kernel ahead has ended."""
    launch_dependents(PDL)
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    row = tl.minimum(n, N - 1).to(tl.int64)
    pointers = weight + row[:, None] * K + k[None, :]
    w = _weight_tile(pointers, k, K, BLOCK_K)
    up_pointers = pointers
    u = w
    if GATED:
        up_pointers = weight + (row + N)[:, None] * K + k[None, :]
        u = _weight_tile(up_pointers, k, K, BLOCK_K)
    wait(PDL)

    if M == 1:
        total = tl.zeros([BLOCK_N, BLOCK_K], tl.float32)
        squares = tl.zeros([BLOCK_K], tl.float32)
    else:
        total = tl.zeros([M, BLOCK_N, BLOCK_K], tl.float32)
        squares = tl.zeros([M, BLOCK_K], tl.float32)
    up_total = total
    STEPS: tl.constexpr = (K + BLOCK_K - 1) // BLOCK_K
    for step in range(STEPS):
        here = step * BLOCK_K + k
        if STEPS > 1:
            # The last step fetches its own tile again: from the cache, and without a mask.
            ahead = tl.minimum(step + 1, STEPS - 1) * BLOCK_K
            w_ahead = _weight_tile(pointers + ahead, ahead + k, K, BLOCK_K)
            if GATED:
                u_ahead = _weight_tile(up_pointers + ahead, ahead + k, K, BLOCK_K)
        part = _x_tile(x, here, rows, K, M)
        if norm_weight is not None:
            squares += part * part
            scale = tl.load(norm_weight + here, mask=here < K, other=0.0).to(tl.float32)
            if M == 1:
                part = part * scale
            else:
                part = part * scale[None, :]
        total = _multiply_add(total, w, part, M)
        if GATED:
            up_total = _multiply_add(up_total, u, part, M)
        if STEPS > 1:
            w = w_ahead
            if GATED:
                u = u_ahead

    if M == 1:
        y = tl.sum(total, 1)[None, :]
        up = tl.sum(up_total, 1)[None, :] if GATED else y
        square = tl.sum(squares, 0)
        factor = tl.rsqrt(square / K + eps)
    else:
        y = tl.sum(total, 2)
        up = tl.sum(up_total, 2) if GATED else y
        factor = tl.rsqrt(tl.sum(squares, 1) / K + eps)[:, None]
    if norm_weight is not None:
        y = y * factor
        up = up * factor
    _epilogue(y, up, out, bias, residual, n, rows, N, GATED, M)


@triton.jit(do_not_specialize=["rows"])
def dot_kernel(
    x,
    weight,
    out,
    norm_weight,
    bias,
    residual,
    parts,
    square_parts,
    counters,
    rows,
    eps,
    N,
    K: tl.constexpr,
    M: tl.constexpr,
    GATED: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    SPLIT: tl.constexpr,
    STAGES: tl.constexpr,
    LINES: tl.constexpr,
    PDL: tl.constexpr,
):
    """A program makes BLOCK_N outputs of all M rows, or its part of their sum over K.

    parts: [SPLIT, blocks, 1 + GATED, M, BLOCK_N] float32; square_parts: [SPLIT, blocks, M] float32; counters: [blocks]
    int32, 0 before and after. LINES: cache lines of 64 terms of each row of W to fetch while the kernel ahead runs.
    """
    launch_dependents(PDL)
    block, cut = tl.program_id(0), tl.program_id(1)
    blocks = tl.num_programs(0)
    n = block * BLOCK_N + tl.arange(0, BLOCK_N)
    m = tl.arange(0, M)
    k = tl.arange(0, BLOCK_K)
    row = tl.minimum(n, N - 1).to(tl.int64)
    STEPS: tl.constexpr = (K + BLOCK_K - 1) // BLOCK_K
    SHARE: tl.constexpr = (STEPS + SPLIT - 1) // SPLIT
    first = cut * SHARE
    if PDL:
        line = tl.minimum(first * BLOCK_K + tl.arange(0, LINES) * 64, K - 1)
        prefetch(weight + row[:, None] * K + line[None, :])
        if GATED:
            prefetch(weight + (row + N)[:, None] * K + line[None, :])
    wait(PDL)

    total = tl.zeros([M, BLOCK_N], tl.float32)
    up_total = total
    squares = tl.zeros([M], tl.float32)
    for step in tl.range(first, min(first + SHARE, STEPS), num_stages=STAGES):
        here = step * BLOCK_K + k
        w = _weight_tile(weight + row[:, None] * K + here[None, :], here, K, BLOCK_K)
        inside = (m < rows)[:, None] & (here < K)[None, :]
        part = tl.load(x + m[:, None] * K + here[None, :], mask=inside, other=0.0)
        if norm_weight is not None:
            wide = part.to(tl.float32)
            squares += tl.sum(wide * wide, 1)
            scale = tl.load(norm_weight + here, mask=here < K, other=0.0).to(tl.float32)
            part = (wide * scale[None, :]).to(part.dtype)
        total = tl.dot(part, tl.trans(w), total)
        if GATED:
            u = _weight_tile(weight + (row + N)[:, None] * K + here[None, :], here, K, BLOCK_K)
            up_total = tl.dot(part, tl.trans(u), up_total)

    if SPLIT == 1:
        if norm_weight is not None:
            factor = tl.rsqrt(squares / K + eps)[:, None]
            total = total * factor
            up_total = up_total * factor
        _epilogue(total, up_total, out, bias, residual, n, rows, N, GATED, M)
    else:
        TILES: tl.constexpr = 2 if GATED else 1
        SIZE: tl.constexpr = M * BLOCK_N
        inner = m[:, None] * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
        own = cut * blocks + block
        tl.store(parts + own * TILES * SIZE + inner, total)
        if GATED:
            tl.store(parts + (own * TILES + 1) * SIZE + inner, up_total)
        if norm_weight is not None:
            tl.store(square_parts + own * M + m, squares)
        tl.debug_barrier()
        arrived = tl.atomic_add(counters + block, 1)
        if arrived == SPLIT - 1:
            total = tl.zeros([M, BLOCK_N], tl.float32)
            up_total = total
            squares = tl.zeros([M], tl.float32)
            for index in tl.static_range(SPLIT):
                other = index * blocks + block
                total += tl.load(parts + other * TILES * SIZE + inner, cache_modifier=".cg")
                if GATED:
                    up_total += tl.load(parts + (other * TILES + 1) * SIZE + inner, cache_modifier=".cg")
                if norm_weight is not None:
                    squares += tl.load(square_parts + other * M + m, cache_modifier=".cg")
            if norm_weight is not None:
                factor = tl.rsqrt(squares / K + eps)[:, None]
                total = total * factor
                up_total = up_total * factor
            _epilogue(total, up_total, out, bias, residual, n, rows, N, GATED, M)
            tl.store(counters + block, 0)


def launch(
    tiling: Tiling,
    x: Tensor,
    weight: Tensor,
    out: Tensor,
    *,
    norm_weight: Tensor | None,
    eps: float,
    bias: Tensor | None,
    residual: Tensor | None,
    gated: bool,
    counters: Tensor | None,
) -> None:
    """Run a kernel; the arguments are those of :func:`pymllm.layers.kernels.product`. x: [T, K], out: [T, N]."""
    rows, width = out.shape
    shared = {
        "K": x.shape[1],
        "GATED": gated,
        "BLOCK_N": tiling.block_n,
        "BLOCK_K": tiling.block_k,
        "num_warps": tiling.warps,
        **launch_options(x.device),
    }
    blocks = triton.cdiv(width, tiling.block_n)
    if tiling.kernel == "gemv":
        gemv_kernel[(blocks,)](
            x, weight, out, norm_weight, bias, residual, rows, eps, width, M=triton.next_power_of_2(rows), **shared
        )
        return
    height = max(16, triton.next_power_of_2(rows))
    parts = square_parts = None
    if tiling.split > 1:
        assert counters is not None and len(counters) >= blocks, "a sum that is cut needs counters"
        tiles = tiling.split * blocks
        parts = torch.empty(tiles * (2 if gated else 1) * height * tiling.block_n, device=x.device)
        square_parts = torch.empty(tiles * height, device=x.device) if norm_weight is not None else None
    dot_kernel[(blocks, tiling.split)](
        x,
        weight,
        out,
        norm_weight,
        bias,
        residual,
        parts,
        square_parts,
        counters if tiling.split > 1 else None,
        rows,
        eps,
        width,
        M=height,
        SPLIT=tiling.split,
        STAGES=tiling.stages,
        LINES=min(32, triton.next_power_of_2(triton.cdiv(x.shape[1], 64 * tiling.split))),
        **shared,
    )
