"""A Triton kernel for one row of x, from its norm to the residual stream, where reading W once is all that counts.

Each program norms and rounds the whole row for itself while its first rows of W are on their way: that costs no time,
and no kernel of its own. It keeps the row in registers, four integers to a word, and streams rows of W past it.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from pymllm.layers.kernels.dependent import launch_dependents, launch_options, wait
from pymllm_quant_w8a8_cutlass.kernels.integers_triton import normed, rounded, scale_of
from pymllm_quant_w8a8_cutlass.tilings import Tiling


@triton.jit
def _dot4(a, b, NATIVE: tl.constexpr):
    """The sum of the products of the four signed bytes of each word."""
    if NATIVE:
        total = tl.inline_asm_elementwise(
            "dp4a.s32.s32 $0, $1, $2, 0;", "=r,r,r", [a, b], dtype=tl.int32, is_pure=True, pack=1
        )
    else:
        total = (a << 24 >> 24) * (b << 24 >> 24) + (a << 16 >> 24) * (b << 16 >> 24)
        total += (a << 8 >> 24) * (b << 8 >> 24) + (a >> 24) * (b >> 24)
    return total


@triton.jit
def _words(weight, n, k, N, WIDTH: tl.constexpr):
    """Words k of rows n of W; what lies outside is 0 and costs no traffic. W goes past the first-level cache."""
    inside = (n < N)[:, None] & (k < WIDTH)[None, :]
    pointers = weight + n[:, None].to(tl.int64) * WIDTH + k[None, :]
    return tl.load(pointers, mask=inside, other=0, eviction_policy="evict_first")


@triton.jit
def gemv_kernel(
    x,
    norm_weight,
    weight,
    weight_scale,
    bias,
    residual,
    out,
    eps,
    N,
    K: tl.constexpr,
    WORDS: tl.constexpr,
    GATED: tl.constexpr,
    BLOCK_N: tl.constexpr,
    NATIVE: tl.constexpr,
    PDL: tl.constexpr,
):
    """weight: int32 [N, K / 4], or [2 N, K / 4], gate above up, where GATED; WORDS: at least K / 4."""
    launch_dependents(PDL)
    WIDTH: tl.constexpr = K // 4
    k = tl.arange(0, WORDS)
    byte = tl.arange(0, 4)
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    w = _words(weight, n, k, N, WIDTH)
    u = w
    if GATED:
        u = _words(weight, n + N, k, 2 * N, WIDTH)
    place = k[:, None] * 4 + byte[None, :]
    gamma = None
    if norm_weight is not None:
        gamma = tl.load(norm_weight + place, mask=place < K, other=0.0).to(tl.float32)
    wait(PDL)

    wide = tl.load(x + place, mask=place < K, other=0.0).to(tl.float32)
    flat = tl.reshape(wide, [1, WORDS * 4])
    if norm_weight is not None:
        flat = normed(flat, tl.reshape(gamma, [1, WORDS * 4]), eps, K, 1, x.dtype.element_ty)
    scale = scale_of(flat, 1)
    bytes = tl.reshape(rounded(flat, scale), [WORDS, 4]).to(tl.int32) & 255
    row = tl.sum(bytes << (8 * byte)[None, :], 1)[None, :]
    scale = tl.sum(scale)

    step = tl.num_programs(0) * BLOCK_N
    for first in range(tl.program_id(0) * BLOCK_N, N, step):
        n = first + tl.arange(0, BLOCK_N)
        # The rows after these are fetched meanwhile. After the last there are none: they lie outside.
        w_ahead = _words(weight, n + step, k, N, WIDTH)
        u_ahead = w_ahead
        if GATED:
            u_ahead = _words(weight, tl.where(n + step < N, n + step + N, 2 * N), k, 2 * N, WIDTH)
        inside = n < N
        y = tl.sum(_dot4(w, row, NATIVE), 1).to(tl.float32) * scale
        y *= tl.load(weight_scale + n, mask=inside, other=0.0)
        if bias is not None:
            y += tl.load(bias + n, mask=inside, other=0.0).to(tl.float32)
        if GATED:
            up = tl.sum(_dot4(u, row, NATIVE), 1).to(tl.float32) * scale
            up *= tl.load(weight_scale + N + n, mask=inside, other=0.0)
            if bias is not None:
                up += tl.load(bias + N + n, mask=inside, other=0.0).to(tl.float32)
            y = y / (1.0 + tl.exp(-y)) * up
        if residual is not None:
            y += tl.load(residual + n, mask=inside, other=0.0).to(tl.float32)
        tl.store(out + n, y.to(out.dtype.element_ty), mask=inside)
        w = w_ahead
        u = u_ahead


def launch_gemv(
    tiling: Tiling,
    x: Tensor,
    weight: Tensor,
    weight_scale: Tensor,
    out: Tensor,
    *,
    norm_weight: Tensor | None = None,
    eps: float = 0.0,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    gated: bool = False,
) -> None:
    """x: [1, K], weight: int8 [N, K] or, where gated, [2 N, K], weight_scale: one for each row, out: [1, N]; all are
    contiguous; residual: [1, N], may be out."""
    width, terms = out.shape[1], x.shape[1]
    gemv_kernel[(min(triton.cdiv(width, tiling.block_n), tiling.programs),)](
        x,
        norm_weight,
        weight.view(torch.int32),
        weight_scale,
        bias,
        residual,
        out,
        eps,
        width,
        K=terms,
        WORDS=triton.next_power_of_2(terms // 4),
        GATED=gated,
        BLOCK_N=tiling.block_n,
        NATIVE=x.is_cuda,
        num_warps=tiling.warps,
        **launch_options(x.device),
    )
