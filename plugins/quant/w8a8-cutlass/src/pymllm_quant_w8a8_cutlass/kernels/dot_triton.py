"""A Triton kernel for y = x W^T of 8-bit integers on tensor cores, for any number of rows of x.

W's rows are the rows of the tensor cores' product and x's its columns, so that few of them waste little. The sum over K
may be cut among programs, of which the last to arrive adds the parts: integers, so that no order changes the result.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from pymllm.layers.kernels.dependent import launch_dependents, launch_options, prefetch, wait
from pymllm_quant_w8a8_cutlass.tilings import Tiling

GROUP = 8
"""Blocks of x's rows that are worked on together, so that W's are found in the second-level cache."""


@triton.jit
def _block(flat, m_blocks, n_blocks, GROUP: tl.constexpr):
    """Of program ``flat``: the block of x's rows and that of W's."""
    width = GROUP * n_blocks
    first = flat // width * GROUP
    size = min(m_blocks - first, GROUP)
    return first + flat % width % size, flat % width // size


@triton.jit(do_not_specialize=["rows"])
def dot_kernel(
    x,
    x_scale,
    weight,
    weight_scale,
    bias,
    residual,
    out,
    parts,
    counters,
    rows,
    N,
    K: tl.constexpr,
    M: tl.constexpr,
    GATED: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    SPLIT: tl.constexpr,
    STAGES: tl.constexpr,
    GROUP: tl.constexpr,
    PDL: tl.constexpr,
):
    """A program makes the products of M rows of x and BLOCK_N of W, or its part of their sum over K; where GATED, half
    of W's rows are gates and the other half the ups that go with them.

    parts: [SPLIT, blocks, BLOCK_N, M] int32; counters: [blocks] int32, 0 before and after.
    """
    launch_dependents(PDL)
    flat, cut = tl.program_id(0), tl.program_id(1)
    blocks = tl.num_programs(0)
    m_blocks = (rows + M - 1) // M
    m_block, n_block = _block(flat, m_blocks, blocks // m_blocks, GROUP)
    OUTPUTS: tl.constexpr = BLOCK_N // 2 if GATED else BLOCK_N
    lane = tl.arange(0, BLOCK_N)
    n = n_block * OUTPUTS + lane % OUTPUTS
    # Rows past the end are the last one again: cheaper than a mask, and not stored.
    row = (tl.minimum(n, N - 1) + lane // OUTPUTS * N).to(tl.int64)
    m = m_block.to(tl.int64) * M + tl.arange(0, M)
    k = tl.arange(0, BLOCK_K)
    STEPS: tl.constexpr = (K + BLOCK_K - 1) // BLOCK_K
    SHARE: tl.constexpr = (STEPS + SPLIT - 1) // SPLIT
    first = cut * SHARE
    if PDL:
        # The first 256 bytes of each row, in cache lines, while the kernel ahead runs. More of them cost it more than
        # they gain.
        line = tl.minimum(first * BLOCK_K + tl.arange(0, 2) * 128, K - 1)
        prefetch(weight + row[:, None] * K + line[None, :])
    wait(PDL)

    total = tl.zeros([BLOCK_N, M], tl.int32)
    for step in tl.range(first, min(first + SHARE, STEPS), num_stages=STAGES):
        here = step * BLOCK_K + k
        if K % BLOCK_K == 0:
            w = tl.load(weight + row[:, None] * K + here[None, :])
        else:
            w = tl.load(weight + row[:, None] * K + here[None, :], mask=(here < K)[None, :], other=0)
        present = (m < rows)[None, :] & (here < K)[:, None]
        part = tl.load(x + m[None, :] * K + here[:, None], mask=present, other=0)
        total = tl.dot(w, part, total, out_dtype=tl.int32)

    last = True
    if SPLIT > 1:
        SIZE: tl.constexpr = M * BLOCK_N
        inner = lane[:, None] * M + tl.arange(0, M)[None, :]
        tl.store(parts + (cut * blocks + flat) * SIZE + inner, total)
        tl.debug_barrier()
        last = tl.atomic_add(counters + flat, 1) == SPLIT - 1
    if last:
        if SPLIT > 1:
            total = tl.zeros([BLOCK_N, M], tl.int32)
            for index in tl.static_range(SPLIT):
                total += tl.load(parts + (index * blocks + flat) * SIZE + inner, cache_modifier=".cg")
            tl.store(counters + flat, 0)
        scale = tl.load(x_scale + m, mask=m < rows, other=0.0)
        y = total.to(tl.float32) * scale[None, :] * tl.load(weight_scale + row)[:, None]
        if bias is not None:
            y += tl.load(bias + row).to(tl.float32)[:, None]
        if GATED:
            gate, up = tl.split(tl.permute(tl.reshape(y, [2, OUTPUTS, M]), [1, 2, 0]))
            y = gate / (1.0 + tl.exp(-gate)) * up
        own = n_block * OUTPUTS + tl.arange(0, OUTPUTS)
        place = m[None, :] * N + own[:, None]
        inside = (m < rows)[None, :] & (own < N)[:, None]
        if residual is not None:
            y += tl.load(residual + place, mask=inside, other=0.0).to(tl.float32)
        tl.store(out + place, y.to(out.dtype.element_ty), mask=inside)


def launch_dot(
    tiling: Tiling,
    x: Tensor,
    x_scale: Tensor,
    weight: Tensor,
    weight_scale: Tensor,
    out: Tensor,
    *,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    gated: bool = False,
    counters: Tensor | None = None,
) -> None:
    """x: int8 [T, K], x_scale: [T], weight: int8 [N, K] or, where gated, [2 N, K], weight_scale: one for each row,
    out: [T, N]; all are contiguous; residual: [T, N], may be out. counters: int32 zeros, one for each block, that no
    product that may run at the same time has; needed where the tiling splits."""
    rows, width = out.shape
    outputs = tiling.block_n // 2 if gated else tiling.block_n
    blocks = triton.cdiv(width, outputs) * triton.cdiv(rows, tiling.block_m)
    parts = None
    if tiling.split > 1:
        assert counters is not None, "a sum that is cut needs counters"
        assert len(counters) >= blocks, "one for each block"
        size = tiling.split * blocks * tiling.block_n * tiling.block_m
        parts = torch.empty(size, dtype=torch.int32, device=x.device)
    dot_kernel[(blocks, tiling.split)](
        x,
        x_scale,
        weight,
        weight_scale,
        bias,
        residual,
        out,
        parts,
        counters if tiling.split > 1 else None,
        rows,
        width,
        K=x.shape[1],
        M=tiling.block_m,
        GATED=gated,
        BLOCK_N=tiling.block_n,
        BLOCK_K=tiling.block_k,
        SPLIT=tiling.split,
        STAGES=tiling.stages,
        GROUP=GROUP,
        num_warps=tiling.warps,
        **launch_options(x.device),
    )
