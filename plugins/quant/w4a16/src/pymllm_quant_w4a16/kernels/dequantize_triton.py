"""4-bit weights back to 16 or 32 bits, for products that the library computes."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from pymllm.layers.kernels.dependent import launch_dependents, launch_options, wait
from pymllm_quant_w4a16.kernels.scales_triton import scale_of, zero_of
from pymllm_quant_w4a16.layout import Weight4

BLOCK_K = tl.constexpr(256)
WORDS = tl.constexpr(32)
"""Of a block of the layout, which has 8 terms a word."""


@triton.jit
def dequantize_kernel(
    words,
    scales,
    zeros,
    out,
    N,
    K: tl.constexpr,
    GROUP: tl.constexpr,
    GROUPS: tl.constexpr,
    INSIDE: tl.constexpr,
    BLOCK_N: tl.constexpr,
    PDL: tl.constexpr,
):
    """A program turns one block of BLOCK_N rows back."""
    launch_dependents(PDL)
    BLOCKS: tl.constexpr = (K + BLOCK_K - 1) // BLOCK_K
    n = (tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)
    block = tl.program_id(1)
    i = tl.arange(0, WORDS)
    known = n < N
    row = tl.minimum(n, N - 1)
    word = tl.load(words + n[:, None] * (BLOCKS * WORDS) + (block * WORDS + i)[None, :], mask=known[:, None], other=0)
    # What is written may still be read by a kernel ahead.
    wait(PDL)
    for nibble in tl.static_range(8):
        k = block * BLOCK_K + nibble * WORDS + i
        group = tl.minimum((block * BLOCK_K + nibble * WORDS) // GROUP, GROUPS - 1)
        at = group * N + row
        bits = tl.load(scales + at)
        w = ((word >> nibble * 4) & 0xF).to(tl.float32) - zero_of(bits, zeros, at, INSIDE)[:, None]
        w *= scale_of(bits, INSIDE)[:, None]
        inside = known[:, None] & (k < K)[None, :]
        tl.store(out + n[:, None] * K + k[None, :], w.to(out.dtype.element_ty), mask=inside)


def launch_dequantize(weight: Weight4, out: Tensor) -> None:
    """Write the weight into out, [N, K], contiguous."""
    rows, block_n = weight.out_features, 16
    grid = (triton.cdiv(rows, block_n), triton.cdiv(weight.in_features, 256))
    dequantize_kernel[grid](
        weight.words,
        weight.scales,
        weight.zeros,
        out,
        rows,
        K=weight.in_features,
        GROUP=weight.kernel_group,
        GROUPS=weight.groups,
        INSIDE=weight.inside,
        BLOCK_N=block_n,
        num_warps=4,
        **launch_options(out.device),
    )
