"""Triton kernels that work row by row: norms, and the product of SwiGLU."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from pymllm.layers.kernels.dependent import launch_dependents, launch_options, wait


@triton.jit(do_not_specialize=["rows"])
def rms_norm_kernel(
    x,
    weight,
    out,
    rows,
    eps,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    PDL: tl.constexpr,
):
    launch_dependents(PDL)
    column = tl.arange(0, BLOCK)
    scale = tl.load(weight + column, mask=column < SIZE, other=0.0)
    wait(PDL)
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    place = row[:, None] * SIZE + column[None, :]
    inside = (row < rows)[:, None] & (column < SIZE)[None, :]
    wide = tl.load(x + place, mask=inside, other=0.0).to(tl.float32)
    factor = tl.rsqrt(tl.sum(wide * wide, 1) / SIZE + eps)[:, None]
    rounded = (wide * factor).to(out.dtype.element_ty).to(tl.float32)
    tl.store(out + place, (rounded * scale.to(tl.float32)[None, :]).to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["rows"])
def layer_norm_kernel(
    x,
    weight,
    bias,
    offset,
    out,
    rows,
    eps,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    PDL: tl.constexpr,
):
    """offset: float32, or None."""
    launch_dependents(PDL)
    column = tl.arange(0, BLOCK)
    known = column < SIZE
    scale = tl.load(weight + column, mask=known, other=0.0).to(tl.float32)
    shift = tl.load(bias + column, mask=known, other=0.0).to(tl.float32)
    wait(PDL)
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    place = row[:, None] * SIZE + column[None, :]
    inside = (row < rows)[:, None] & known[None, :]
    wide = tl.load(x + place, mask=inside, other=0.0).to(tl.float32)
    if offset is not None:
        wide += tl.load(offset + column, mask=known, other=0.0)[None, :]
    centred = tl.where(inside, wide - (tl.sum(wide, 1) / SIZE)[:, None], 0.0)
    factor = tl.rsqrt(tl.sum(centred * centred, 1) / SIZE + eps)[:, None]
    tl.store(out + place, (centred * factor * scale[None, :] + shift[None, :]).to(out.dtype.element_ty), mask=inside)


@triton.jit
def silu_and_mul_kernel(gate_up, out, width, BLOCK: tl.constexpr, PDL: tl.constexpr):
    launch_dependents(PDL)
    wait(PDL)
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    gate = tl.load(gate_up + row * 2 * width + column, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + (row * 2 + 1) * width + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * width + column, (gate / (1.0 + tl.exp(-gate)) * up).to(out.dtype.element_ty), mask=inside)


def launch_rms_norm(x: Tensor, weight: Tensor, out: Tensor, eps: float) -> None:
    """x, out: [..., size], contiguous; weight: [size]."""
    grid, rows, shape = _by_rows(x)
    rms_norm_kernel[grid](x, weight, out, rows, eps, **shape)


def launch_layer_norm(x: Tensor, weight: Tensor, bias: Tensor, offset: Tensor | None, out: Tensor, eps: float) -> None:
    """x, out: [..., size], contiguous; weight, bias: [size]; offset: [size] float32 or None."""
    grid, rows, shape = _by_rows(x)
    layer_norm_kernel[grid](x, weight, bias, offset, out, rows, eps, **shape)


def _by_rows(x: Tensor) -> tuple[tuple[int], int, dict[str, Any]]:
    """Grid, rows and launch options of a kernel whose programs take whole rows of x."""
    size = x.shape[-1]
    rows = x.numel() // size
    block = triton.next_power_of_2(size)
    per_program = max(1, 1024 // block)
    options = {"SIZE": size, "BLOCK": block, "ROWS": per_program, "num_warps": min(16, max(4, block // 512))}
    return (triton.cdiv(rows, per_program),), rows, {**options, **launch_options(x.device)}


def launch_silu_and_mul(gate_up: Tensor, out: Tensor) -> None:
    """gate_up: [T, 2 I], out: [T, I], both contiguous."""
    rows, width = out.shape
    block = 1024
    silu_and_mul_kernel[(rows, triton.cdiv(width, block))](
        gate_up, out, width, BLOCK=block, num_warps=4, **launch_options(out.device)
    )
