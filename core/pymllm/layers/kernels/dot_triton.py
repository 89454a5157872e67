"""A Triton kernel for y = x W^T with a few rows of x (2 to 128), on tensor cores.

W's rows are the rows of the tensor cores' product and x's rows its columns, so that few of them waste little. The sum
over K may be cut among programs, of which the last to arrive adds the parts in their order: results do not vary.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from pymllm.layers.kernels.dependent import launch_dependents, launch_options, prefetch, wait
from pymllm.layers.kernels.tiling import Tiling


@triton.jit(do_not_specialize=["rows"])
def dot_kernel(
    x,
    weight,
    out,
    bias,
    residual,
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
    PDL: tl.constexpr,
):
    """A program makes the products of BLOCK_N rows of W, or its part of their sum over K; where GATED, half of the
    rows are gates and the other half the ups that go with them. rows: of x, at most M.

    parts: [SPLIT, blocks, BLOCK_N, M] float32; counters: [blocks] int32, 0 before and after.
    """
    launch_dependents(PDL)
    block, cut = tl.program_id(0), tl.program_id(1)
    blocks = tl.num_programs(0)
    OUTPUTS: tl.constexpr = BLOCK_N // 2 if GATED else BLOCK_N
    lane = tl.arange(0, BLOCK_N)
    n = block * OUTPUTS + lane % OUTPUTS
    # Rows past the end are the last one again: cheaper than a mask, and not stored.
    row = (tl.minimum(n, N - 1) + lane // OUTPUTS * N).to(tl.int64)
    m = tl.arange(0, M)
    k = tl.arange(0, BLOCK_K)
    STEPS: tl.constexpr = (K + BLOCK_K - 1) // BLOCK_K
    SHARE: tl.constexpr = (STEPS + SPLIT - 1) // SPLIT
    first = cut * SHARE
    if PDL:
        # The first 512 bytes of each row, in cache lines of 64 terms, while the kernel ahead runs.
        line = tl.minimum(first * BLOCK_K + tl.arange(0, 4) * 64, K - 1)
        prefetch(weight + row[:, None] * K + line[None, :])
    wait(PDL)

    total = tl.zeros([BLOCK_N, M], tl.float32)
    for step in tl.range(first, min(first + SHARE, STEPS), num_stages=STAGES):
        here = step * BLOCK_K + k
        if K % BLOCK_K == 0:
            w = tl.load(weight + row[:, None] * K + here[None, :])
        else:
            w = tl.load(weight + row[:, None] * K + here[None, :], mask=(here < K)[None, :], other=0.0)
        present = (m < rows)[None, :] & (here < K)[:, None]
        part = tl.load(x + m[None, :] * K + here[:, None], mask=present, other=0.0)
        total = tl.dot(w, part, total)

    last = True
    if SPLIT > 1:
        SIZE: tl.constexpr = M * BLOCK_N
        inner = lane[:, None] * M + m[None, :]
        tl.store(parts + (cut * blocks + block) * SIZE + inner, total)
        tl.debug_barrier()
        last = tl.atomic_add(counters + block, 1) == SPLIT - 1
    if last:
        if SPLIT > 1:
            total = tl.zeros([BLOCK_N, M], tl.float32)
            for index in tl.static_range(SPLIT):
                total += tl.load(parts + (index * blocks + block) * SIZE + inner, cache_modifier=".cg")
            tl.store(counters + block, 0)
        if bias is not None:
            total += tl.load(bias + row).to(tl.float32)[:, None]
        y = total
        if GATED:
            gate, up = tl.split(tl.permute(tl.reshape(total, [2, OUTPUTS, M]), [1, 2, 0]))
            y = gate / (1.0 + tl.exp(-gate)) * up
        own = block * OUTPUTS + tl.arange(0, OUTPUTS)
        place = m[None, :].to(tl.int64) * N + own[:, None]
        inside = (m < rows)[None, :] & (own < N)[:, None]
        if residual is not None:
            y += tl.load(residual + place, mask=inside, other=0.0).to(tl.float32)
        tl.store(out + place, y.to(out.dtype.element_ty), mask=inside)


def launch_dot(
    tiling: Tiling,
    x: Tensor,
    weight: Tensor,
    out: Tensor,
    *,
    bias: Tensor | None,
    residual: Tensor | None,
    gated: bool,
    counters: Tensor | None,
) -> None:
    """Run the kernel; x: [T, K], out: [T, N], the other arguments are those of ``product``."""
    rows, width = out.shape
    outputs = tiling.block_n // 2 if gated else tiling.block_n
    blocks = triton.cdiv(width, outputs)
    height = max(16, triton.next_power_of_2(rows))
    parts = None
    if tiling.split > 1:
        assert counters is not None, "a sum that is cut needs counters"
        assert len(counters) >= blocks, "one for each block"
        parts = torch.empty(tiling.split * blocks * tiling.block_n * height, device=x.device)
    dot_kernel[(blocks, tiling.split)](
        x,
        weight,
        out,
        bias,
        residual,
        parts,
        counters if tiling.split > 1 else None,
        rows,
        width,
        K=x.shape[1],
        M=height,
        GATED=gated,
        BLOCK_N=tiling.block_n,
        BLOCK_K=tiling.block_k,
        SPLIT=tiling.split,
        STAGES=tiling.stages,
        num_warps=tiling.warps,
        **launch_options(x.device),
    )
