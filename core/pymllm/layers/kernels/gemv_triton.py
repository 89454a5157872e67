"""Triton kernels for one row of x: y = x W^T, where reading W once, at the full speed of memory, is all that counts.

Sums are float32 in registers. The first tile of W is fetched before the kernel ahead has ended. A norm before the
product is linear but for one factor, 1 / sqrt(mean(x^2) + eps), which one pass over x gives.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from pymllm.layers.kernels.dependent import launch_dependents, launch_options, wait
from pymllm.layers.kernels.tiling import Tiling


@triton.jit
def _tile(weight, n, k, N, K: tl.constexpr, BLOCK_K: tl.constexpr):
    """Rows n of W, terms k. What lies outside is 0 and costs no traffic; W goes past the first-level cache, which
    keeps x."""
    pointers = weight + n[:, None].to(tl.int64) * K + k[None, :]
    if K % BLOCK_K == 0:
        tile = tl.load(pointers, mask=(n < N)[:, None], other=0.0, eviction_policy="evict_first")
    else:
        inside = (n < N)[:, None] & (k < K)[None, :]
        tile = tl.load(pointers, mask=inside, other=0.0, eviction_policy="evict_first")
    return tile


@triton.jit
def _finish(y, up, out, bias, residual, n, N, GATED: tl.constexpr):
    """Bias, activation, residual and the store of outputs n; y, up: [BLOCK_N] float32, up is y's partner."""
    inside = n < N
    if bias is not None:
        y += tl.load(bias + n, mask=inside, other=0.0).to(tl.float32)
        if GATED:
            up += tl.load(bias + N + n, mask=inside, other=0.0).to(tl.float32)
    if GATED:
        y = y / (1.0 + tl.exp(-y)) * up
    if residual is not None:
        y += residual
    tl.store(out + n, y.to(out.dtype.element_ty), mask=inside)


@triton.jit
def gemv_kernel(
    x,
    weight,
    out,
    norm_weight,
    bias,
    residual,
    eps,
    N,
    K: tl.constexpr,
    GATED: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PDL: tl.constexpr,
):
    """A program makes BLOCK_N outputs, BLOCK_K terms at a time; the next tile of W is always on its way."""
    launch_dependents(PDL)
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    w = _tile(weight, n, k, N, K, BLOCK_K)
    u = w
    if GATED:
        u = _tile(weight, n + N, k, 2 * N, K, BLOCK_K)
    wait(PDL)

    added = None
    if residual is not None:
        added = tl.load(residual + n, mask=n < N, other=0.0).to(tl.float32)
    total = tl.zeros([BLOCK_N, BLOCK_K], tl.float32)
    up_total = total
    squares = tl.zeros([BLOCK_K], tl.float32)
    STEPS: tl.constexpr = (K + BLOCK_K - 1) // BLOCK_K
    for step in range(STEPS):
        here = step * BLOCK_K + k
        if STEPS > 1:
            # After the last step there is nothing to fetch: its rows are put outside.
            ahead = here + BLOCK_K
            rows = tl.where(step + 1 < STEPS, n, N)
            w_ahead = _tile(weight, rows, ahead, N, K, BLOCK_K)
            if GATED:
                u_ahead = _tile(weight, rows + N, ahead, 2 * N, K, BLOCK_K)
        part = tl.load(x + here, mask=here < K, other=0.0).to(tl.float32)
        if norm_weight is not None:
            squares += part * part
            part *= tl.load(norm_weight + here, mask=here < K, other=0.0).to(tl.float32)
        total += w.to(tl.float32) * part[None, :]
        if GATED:
            up_total += u.to(tl.float32) * part[None, :]
        if STEPS > 1:
            w = w_ahead
            if GATED:
                u = u_ahead

    y = tl.sum(total, 1)
    up = y
    if GATED:
        up = tl.sum(up_total, 1)
    if norm_weight is not None:
        factor = tl.rsqrt(tl.sum(squares, 0) / K + eps)
        y *= factor
        up *= factor
    _finish(y, up, out, bias, added, n, N, GATED)


@triton.jit
def resident_kernel(
    x,
    weight,
    out,
    norm_weight,
    bias,
    residual,
    eps,
    N,
    K: tl.constexpr,
    GATED: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PDL: tl.constexpr,
):
    """As many programs as the device holds keep the whole, normed x in registers (K <= BLOCK_K) and stream rows of W
    past it, BLOCK_N outputs at a time."""
    launch_dependents(PDL)
    k = tl.arange(0, BLOCK_K)
    lane = tl.arange(0, BLOCK_N)
    first = tl.program_id(0) * BLOCK_N
    stride = tl.num_programs(0) * BLOCK_N
    w = _tile(weight, first + lane, k, N, K, BLOCK_K)
    u = w
    if GATED:
        u = _tile(weight, first + lane + N, k, 2 * N, K, BLOCK_K)
    scale = k
    if norm_weight is not None:
        scale = tl.load(norm_weight + k, mask=k < K, other=0.0).to(tl.float32)
    wait(PDL)
    part = tl.load(x + k, mask=k < K, other=0.0).to(tl.float32)
    if norm_weight is not None:
        part *= scale * tl.rsqrt(tl.sum(part * part, 0) / K + eps)

    for start in range(first, N, stride):
        n = start + lane
        w_ahead = _tile(weight, n + stride, k, N, K, BLOCK_K)
        if GATED:
            u_ahead = _tile(weight, n + stride + N, k, 2 * N, K, BLOCK_K)
        added = None
        if residual is not None:
            added = tl.load(residual + n, mask=n < N, other=0.0).to(tl.float32)
        y = tl.sum(w.to(tl.float32) * part[None, :], 1)
        up = y
        if GATED:
            up = tl.sum(u.to(tl.float32) * part[None, :], 1)
        _finish(y, up, out, bias, added, n, N, GATED)
        w = w_ahead
        if GATED:
            u = u_ahead


def launch_gemv(
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
) -> None:
    """Run one of the two kernels; x: [1, K], out: [1, N], the other arguments are those of ``product``."""
    width = out.shape[1]
    blocks = triton.cdiv(width, tiling.block_n)
    kernel, programs = gemv_kernel, blocks
    if tiling.kernel == "resident":
        assert x.shape[1] <= tiling.block_k, "x has to fit into a program's registers"
        kernel, programs = resident_kernel, min(blocks, tiling.programs)
    kernel[(programs,)](
        x,
        weight,
        out,
        norm_weight,
        bias,
        residual,
        eps,
        width,
        K=x.shape[1],
        GATED=gated,
        BLOCK_N=tiling.block_n,
        BLOCK_K=tiling.block_k,
        num_warps=tiling.warps,
        **launch_options(x.device),
    )
