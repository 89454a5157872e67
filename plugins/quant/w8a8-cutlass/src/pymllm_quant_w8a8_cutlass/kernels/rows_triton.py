"""A Triton kernel that rounds rows to 8-bit integers in one pass, with a norm or SwiGLU's product before it."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from pymllm.layers.kernels.dependent import launch_dependents, launch_options, wait
from pymllm_quant_w8a8_cutlass.kernels.integers_triton import normed, rounded, scale_of


@triton.jit(do_not_specialize=["rows"])
def quantize_kernel(
    x,
    norm_weight,
    out,
    scales,
    rows,
    eps,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    GATED: tl.constexpr,
    PDL: tl.constexpr,
):
    """A program rounds ROWS rows. x: [rows, SIZE], or [rows, 2 SIZE], gate then up, where GATED; out: int8."""
    launch_dependents(PDL)
    column = tl.arange(0, BLOCK)
    known = column < SIZE
    gamma = None
    if norm_weight is not None:
        gamma = tl.load(norm_weight + column, mask=known, other=0.0).to(tl.float32)[None, :]
    wait(PDL)
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    inside = (row < rows)[:, None] & known[None, :]
    STRIDE: tl.constexpr = 2 * SIZE if GATED else SIZE
    source = x + row[:, None] * STRIDE + column[None, :]
    wide = tl.load(source, mask=inside, other=0.0).to(tl.float32)
    if GATED:
        up = tl.load(source + SIZE, mask=inside, other=0.0).to(tl.float32)
        wide = (wide / (1.0 + tl.exp(-wide)) * up).to(x.dtype.element_ty).to(tl.float32)
    if norm_weight is not None:
        wide = normed(wide, gamma, eps, SIZE, 1, x.dtype.element_ty)
    scale = scale_of(wide, 1)
    tl.store(out + row[:, None] * SIZE + column[None, :], rounded(wide, scale).to(tl.int8), mask=inside)
    tl.store(scales + row[:, None], scale, mask=(row < rows)[:, None])


def launch_quantize(
    x: Tensor, *, norm_weight: Tensor | None = None, eps: float = 0.0, gated: bool = False
) -> tuple[Tensor, Tensor]:
    """x: [T, K] or, where gated, [T, 2 K], contiguous; norm_weight: [K] of an RMS norm -> int8 [T, K], float32 [T]."""
    rows, size = x.shape
    if gated:
        size //= 2
    out = torch.empty(rows, size, dtype=torch.int8, device=x.device)
    scales = torch.empty(rows, dtype=torch.float32, device=x.device)
    block = triton.next_power_of_2(size)
    per_program = max(1, 1024 // block)
    quantize_kernel[(triton.cdiv(rows, per_program),)](
        x,
        norm_weight,
        out,
        scales,
        rows,
        eps,
        SIZE=size,
        BLOCK=block,
        ROWS=per_program,
        GATED=gated,
        num_warps=min(16, max(4, block // 512)),
        **launch_options(x.device),
    )
    return out, scales
