"""y = x W^T of 4-bit weights on tensor cores: few rows of x (decode) or many (prefill).

W's rows are the rows of the tensor cores' product and x's rows its columns. A nibble becomes a number by way of the
mantissa of a power of two (Kim et al. 2022, "Who Says Elephants Can't Run"), from which the zero point,
raised by the same power, is subtracted: both are exact in 16 bits. Scales multiply the sums of a group, in float32. The
sum over K may be cut among programs, of which the last to arrive adds the parts in their order: results do not vary.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from pymllm.layers.kernels.dependent import launch_dependents, launch_options, prefetch, wait
from pymllm_quant_w4a16.layout import Weight4
from pymllm_quant_w4a16.tiling import Tiling

BLOCK_K = tl.constexpr(256)
WORDS = tl.constexpr(32)
"""Of a block of the layout, which has 8 terms a word."""


@triton.jit
def offset_of(dtype: tl.constexpr):
    """The power of two whose mantissa holds a nibble in its last bits."""
    return 128.0 if dtype == tl.bfloat16 else (1024.0 if dtype == tl.float16 else 0.0)


PAIR = tl.constexpr("{ .reg .b32 t; prmt.b32 t, $1, $2, $3; shr.b32 t, t, $5; lop3.b32 $0, t, 0x000f000f, $7, 0xea; }")
"""The halves of two words that hold the nibble, shifted, then its four bits of each into a mantissa."""
NINE_REGISTERS = tl.constexpr("=r,r,r,r,r,r,r,r,r")


@triton.jit
def raised(word, nibble: tl.constexpr, dtype: tl.constexpr, PTX: tl.constexpr):
    """Words -> their nibble of that number + offset_of(dtype), in dtype. PTX: two words at a time, by instructions that
    the compiler does not find by itself."""
    half = tl.full([], 0x5410 if nibble < 4 else 0x7632, tl.int32)
    shift = tl.full([], nibble % 4 * 4, tl.int32)
    if dtype == tl.bfloat16:
        if PTX:
            numbers = tl.inline_asm_elementwise(
                PAIR, NINE_REGISTERS, [word, half, shift, 0x43004300], dtype=tl.bfloat16, is_pure=True, pack=2
            )
        else:
            numbers = (((word >> nibble * 4) & 0xF) | 0x4300).to(tl.int16).to(tl.bfloat16, bitcast=True)
    elif dtype == tl.float16:
        if PTX:
            numbers = tl.inline_asm_elementwise(
                PAIR, NINE_REGISTERS, [word, half, shift, 0x64006400], dtype=tl.float16, is_pure=True, pack=2
            )
        else:
            numbers = (((word >> nibble * 4) & 0xF) | 0x6400).to(tl.int16).to(tl.float16, bitcast=True)
    else:
        numbers = ((word >> nibble * 4) & 0xF).to(dtype)
    return numbers


@triton.jit(do_not_specialize=["rows"])
def dot_kernel(
    x,
    words,
    scales,
    zeros,
    out,
    norm_weight,
    bias,
    residual,
    parts,
    counters,
    eps,
    rows,
    N,
    K: tl.constexpr,
    GROUP: tl.constexpr,
    GROUPS: tl.constexpr,
    WIDTH: tl.constexpr,
    M: tl.constexpr,
    GATED: tl.constexpr,
    BLOCK_N: tl.constexpr,
    SPLIT: tl.constexpr,
    STAGES: tl.constexpr,
    PTX: tl.constexpr,
    PDL: tl.constexpr,
):
    """A program makes the products of BLOCK_N rows of W with M rows of x, or its part of their sum over K; where GATED,
    half of the rows are gates and the other half the ups that go with them. rows: of x. zeros: None means 8.
    norm_weight: not None only for one row. WIDTH: the power of two at or above K.

    parts: [SPLIT, blocks of x and W, BLOCK_N, M] float32; counters: int32 for each block, 0 before and after.
    """
    launch_dependents(PDL)
    block, cut, x_block = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    blocks = tl.num_programs(0)
    SPAN: tl.constexpr = GROUP if GROUP < BLOCK_K else BLOCK_K
    SPANS: tl.constexpr = BLOCK_K // SPAN
    NIBBLES: tl.constexpr = SPAN // WORDS
    STEPS: tl.constexpr = (K + BLOCK_K - 1) // BLOCK_K
    SHARE: tl.constexpr = (STEPS + SPLIT - 1) // SPLIT
    OUTPUTS: tl.constexpr = BLOCK_N // 2 if GATED else BLOCK_N
    dtype: tl.constexpr = x.dtype.element_ty
    lane = tl.arange(0, BLOCK_N)
    n = block * OUTPUTS + lane % OUTPUTS
    # Rows past the end are the last one again: cheaper than a mask, and not stored.
    row = (tl.minimum(n, N - 1) + lane // OUTPUTS * N).to(tl.int64)
    m = x_block * M + tl.arange(0, M)
    place = (words + row[:, None] * (STEPS * WORDS)) + tl.arange(0, WORDS)[None, :]
    k = tl.arange(0, WORDS)
    first = cut * SHARE
    if PDL:
        # Of each row, the cache lines of the first steps, and the first scale, while the kernel ahead runs.
        line = tl.minimum(first + tl.arange(0, 4), STEPS - 1) * WORDS
        prefetch(words + row[:, None] * (STEPS * WORDS) + line[None, :])
        first_group = tl.minimum(first * BLOCK_K // GROUP, GROUPS - 1)
        prefetch(scales + row * GROUPS + first_group)
        if zeros is not None:
            prefetch(zeros + row * GROUPS + first_group)
    wait(PDL)
    factor = 1.0
    if norm_weight is not None:
        whole = tl.load(x + tl.arange(0, WIDTH), mask=tl.arange(0, WIDTH) < K, other=0.0).to(tl.float32)
        factor = tl.rsqrt(tl.sum(whole * whole, 0) / K + eps)

    total = tl.zeros([BLOCK_N, M], tl.float32)
    for step in tl.range(first, min(first + SHARE, STEPS), num_stages=STAGES):
        word = tl.load(place + step * WORDS)
        for span in tl.static_range(SPANS):
            group = (step * BLOCK_K + span * SPAN) // GROUP
            # Past the end of K, x is 0 and the group is the last one again.
            scale_at = row * GROUPS + tl.minimum(group, GROUPS - 1)
            zero = 8.0
            if zeros is not None:
                zero = tl.load(zeros + scale_at).to(tl.float32)[:, None]
            zero = (zero + offset_of(dtype)).to(dtype)
            summed = tl.zeros([BLOCK_N, M], tl.float32)
            for nibble in tl.static_range(NIBBLES):
                here = step * BLOCK_K + span * SPAN + nibble * WORDS + k
                part = tl.load(
                    x + m[None, :].to(tl.int64) * K + here[:, None],
                    mask=(m < rows)[None, :] & (here < K)[:, None],
                    other=0.0,
                )
                if norm_weight is not None:
                    part *= tl.load(norm_weight + here, mask=here < K, other=0.0)[:, None]
                w = raised(word, span * NIBBLES + nibble, dtype, PTX) - zero
                summed = tl.dot(w, part, summed, input_precision="ieee")
            total += summed * tl.load(scales + scale_at).to(tl.float32)[:, None]

    last = True
    place_m = tl.arange(0, M)
    if SPLIT > 1:
        SIZE: tl.constexpr = M * BLOCK_N
        own_block = x_block * blocks + block
        all_blocks = blocks * tl.num_programs(2)
        inner = lane[:, None] * M + place_m[None, :]
        tl.store(parts + (cut * all_blocks + own_block).to(tl.int64) * SIZE + inner, total)
        tl.debug_barrier()
        last = tl.atomic_add(counters + own_block, 1) == SPLIT - 1
    if last:
        if SPLIT > 1:
            total = tl.zeros([BLOCK_N, M], tl.float32)
            for index in tl.static_range(SPLIT):
                at = parts + (index * all_blocks + own_block).to(tl.int64) * SIZE + inner
                total += tl.load(at, cache_modifier=".cg")
            tl.store(counters + own_block, 0)
        total *= factor
        if bias is not None:
            total += tl.load(bias + row).to(tl.float32)[:, None]
        y = total
        if GATED:
            gate, up = tl.split(tl.permute(tl.reshape(total, [2, OUTPUTS, M]), [1, 2, 0]))
            y = gate / (1.0 + tl.exp(-gate)) * up
        own = block * OUTPUTS + tl.arange(0, OUTPUTS)
        target = m[None, :].to(tl.int64) * N + own[:, None]
        inside = (m < rows)[None, :] & (own < N)[:, None]
        if residual is not None:
            y += tl.load(residual + target, mask=inside, other=0.0).to(tl.float32)
        tl.store(out + target, y.to(out.dtype.element_ty), mask=inside)


def launch_dot(
    tiling: Tiling,
    x: Tensor,
    weight: Weight4,
    out: Tensor,
    *,
    norm_weight: Tensor | None = None,
    eps: float = 0.0,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    gated: bool = False,
    counters: Tensor | None = None,
    ptx: bool = True,
) -> None:
    """Run the kernel; x: [T, K], out: [T, N], the other arguments are those of ``product``. A norm takes one row.
    ptx: use instructions that Triton's language does not have, on a GPU."""
    rows, width = out.shape
    assert norm_weight is None or rows == 1, "only one row is normed here"
    outputs = tiling.block_n // 2 if gated else tiling.block_n
    blocks, x_blocks = triton.cdiv(width, outputs), triton.cdiv(rows, tiling.block_m)
    parts = None
    if tiling.split > 1:
        assert counters is not None, "a sum that is cut needs counters"
        assert len(counters) >= blocks * x_blocks, "one for each block"
        parts = torch.empty(tiling.split * blocks * x_blocks * tiling.block_n * tiling.block_m, device=x.device)
    dot_kernel[(blocks, tiling.split, x_blocks)](
        x,
        weight.words,
        weight.scales,
        weight.zeros,
        out,
        norm_weight,
        bias,
        residual,
        parts,
        counters if tiling.split > 1 else None,
        eps,
        rows,
        width,
        K=weight.in_features,
        GROUP=weight.kernel_group,
        GROUPS=weight.groups,
        WIDTH=triton.next_power_of_2(weight.in_features),
        M=tiling.block_m,
        GATED=gated,
        BLOCK_N=tiling.block_n,
        SPLIT=tiling.split,
        STAGES=tiling.stages,
        PTX=ptx and x.is_cuda,
        num_warps=tiling.warps,
        **launch_options(x.device),
    )
