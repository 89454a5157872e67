"""y = x W^T of 4-bit weights on tensor cores: few rows of x (decode) or many (prefill).

W's rows are the rows of the tensor cores' product and x's rows its columns. A nibble becomes a number by way of the
mantissa of a power of two (Kim et al. 2022, "Who Says Elephants Can't Run"), from which the zero point,
raised by the same power, is subtracted: both are exact in 16 bits. Scales multiply the sums of a group, in float32, or
the weights, which are then rounded to 16 bits as those of a full-precision checkpoint are: one sum serves all groups.
The sum over K may be cut among programs, of which the last to arrive adds the parts in their order, always the same.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from pymllm.layers.kernels.dependent import launch_dependents, launch_options, prefetch, wait
from pymllm_quant_w4a16.kernels.scales_triton import scale_of, zero_of
from pymllm_quant_w4a16.layout import Weight4
from pymllm_quant_w4a16.tiling import Tiling

BLOCK_K = tl.constexpr(256)
WORDS = tl.constexpr(32)
"""Of a block of the layout, which has 8 terms a word."""
LINES = tl.constexpr(4)
"""Cache lines of a row that are fetched ahead."""


@triton.jit
def offset_of(dtype: tl.constexpr):
    """The power of two whose mantissa holds a nibble in its last bits."""
    return 128.0 if dtype == tl.bfloat16 else (1024.0 if dtype == tl.float16 else 0.0)


PAIR = tl.constexpr("{ .reg .b32 t; prmt.b32 t, $1, $2, $3; shr.b32 t, t, $5; lop3.b32 $0, t, 0x000f000f, $7, 0xea; }")
"""The halves of two words that hold the nibble, shifted, then its four bits of each into a mantissa."""
NINE_REGISTERS = tl.constexpr("=r,r,r,r,r,r,r,r,r")


@triton.jit
def raised(word, upper, nibble: tl.constexpr, dtype: tl.constexpr, PTX: tl.constexpr):
    """Words -> their nibble of that number, or, where upper is 1, the fourth after it, + offset_of(dtype), in dtype.
    PTX: two words at a time, by instructions that the compiler does not find by itself."""
    # Selects the bytes of the lower halves, or of the upper ones.
    half = tl.full([], 0x5410, tl.int32) + 0x2222 * (upper + nibble // 4)
    shift = tl.full([], nibble % 4 * 4, tl.int32)
    if dtype == tl.bfloat16:
        if PTX:
            numbers = tl.inline_asm_elementwise(
                PAIR, NINE_REGISTERS, [word, half, shift, 0x43004300], dtype=tl.bfloat16, is_pure=True, pack=2
            )
        else:
            numbers = (((word >> (nibble + 4 * upper) * 4) & 0xF) | 0x4300).to(tl.int16).to(tl.bfloat16, bitcast=True)
    elif dtype == tl.float16:
        if PTX:
            numbers = tl.inline_asm_elementwise(
                PAIR, NINE_REGISTERS, [word, half, shift, 0x64006400], dtype=tl.float16, is_pure=True, pack=2
            )
        else:
            numbers = (((word >> (nibble + 4 * upper) * 4) & 0xF) | 0x6400).to(tl.int16).to(tl.float16, bitcast=True)
    else:
        numbers = ((word >> (nibble + 4 * upper) * 4) & 0xF).to(dtype)
    return numbers


@triton.jit
def joined(word, upper, first: tl.constexpr, count: tl.constexpr, dtype: tl.constexpr, PTX: tl.constexpr):
    """The same of so many nibbles from the first one on, a power of two, beside each other, [rows, count * WORDS].
    What a thread has of them are numbers of its own words, as tensor cores want them: nothing moves."""
    if count == 1:
        numbers = raised(word, upper, first, dtype, PTX)
    else:
        left = joined(word, upper, first, count // 2, dtype, PTX)
        right = joined(word, upper, first + count // 2, count // 2, dtype, PTX)
        both = tl.permute(tl.join(left, right), [0, 2, 1])
        numbers = tl.reshape(both, [word.shape[0], count * WORDS])
    return numbers


@triton.jit
def _steps(scales, row, step, N, STEP: tl.constexpr, GROUP: tl.constexpr, GROUPS: tl.constexpr, SPAN: tl.constexpr):
    """For each span of a step, words of scales, [rows]. Past the end of K, x is 0 and the group is the last one."""
    found = ()
    for span in tl.static_range(STEP // SPAN):
        group = tl.minimum((step * STEP + span * SPAN) // GROUP, GROUPS - 1)
        found = found + (tl.load(scales + group * N + row),)  # type: ignore[assignment]  # noqa: RUF005 - Triton unpacks none
    return found


@triton.jit(do_not_specialize=["rows"])
def dot_kernel(
    x,
    words,
    scales,
    zeros,
    out,
    bias,
    residual,
    parts,
    counters,
    rows,
    N,
    K: tl.constexpr,
    GROUP: tl.constexpr,
    GROUPS: tl.constexpr,
    INSIDE: tl.constexpr,
    M: tl.constexpr,
    GATED: tl.constexpr,
    BLOCK_N: tl.constexpr,
    SPLIT: tl.constexpr,
    STAGES: tl.constexpr,
    WHOLE: tl.constexpr,
    STEP: tl.constexpr,
    TERMS: tl.constexpr,
    PTX: tl.constexpr,
    PDL: tl.constexpr,
):
    """A program makes the products of BLOCK_N rows of W with M rows of x, or its part of their sum over K; where GATED,
    half of the rows are gates and the other half the ups that go with them. rows: of x. WHOLE: scales multiply the
    weights, not the sums of groups. STEP: terms that are loaded at a time, a block or half of one; TERMS: of a dot.

    parts: [SPLIT, blocks of x and W, BLOCK_N, M] float32; counters: int32 for each block, 0 before and after.
    """
    launch_dependents(PDL)
    block, cut, x_block = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    blocks = tl.num_programs(0)
    SPAN: tl.constexpr = GROUP if GROUP < STEP else STEP
    SPANS: tl.constexpr = STEP // SPAN
    NIBBLES: tl.constexpr = SPAN // WORDS
    DOT: tl.constexpr = TERMS if TERMS < SPAN else SPAN
    STRIDE: tl.constexpr = (K + BLOCK_K - 1) // BLOCK_K * WORDS
    STEPS: tl.constexpr = (K + STEP - 1) // STEP
    PARTS: tl.constexpr = BLOCK_K // STEP
    OUTPUTS: tl.constexpr = BLOCK_N // 2 if GATED else BLOCK_N
    HEIGHT = 2 * N if GATED else N
    dtype: tl.constexpr = x.dtype.element_ty
    lane = tl.arange(0, BLOCK_N)
    n = block * OUTPUTS + lane % OUTPUTS
    # Rows past the end are the last one again: cheaper than a mask, and not stored.
    row = tl.minimum(n, N - 1) + lane // OUTPUTS * N
    m = x_block * M + tl.arange(0, M)
    place = (words + row[:, None].to(tl.int64) * STRIDE) + tl.arange(0, WORDS)[None, :]
    k = tl.arange(0, DOT)
    # Shares differ by a step at most.
    first, end = cut * STEPS // SPLIT, (cut + 1) * STEPS // SPLIT
    # What goes into a dot comes through shared memory, loaded ahead by the compiler; what comes after it would not.
    AHEAD: tl.constexpr = not WHOLE and not INSIDE
    if AHEAD:
        bits = _steps(scales, row, first, HEIGHT, STEP, GROUP, GROUPS, SPAN)
    if PDL:
        # Of each row, the cache lines of the first steps, while the kernel ahead runs.
        line = tl.minimum(first // PARTS + tl.arange(0, LINES), (end - 1) // PARTS) * WORDS
        prefetch(words + row[:, None].to(tl.int64) * STRIDE + line[None, :])
    wait(PDL)

    total = tl.zeros([BLOCK_N, M], tl.float32)
    for step in tl.range(first, end, num_stages=STAGES):
        word = tl.load(place + step // PARTS * WORDS)
        upper = step - step // PARTS * PARTS
        if AHEAD:
            ahead = _steps(scales, row, tl.minimum(step + 1, end - 1), HEIGHT, STEP, GROUP, GROUPS, SPAN)
        else:
            bits = _steps(scales, row, step, HEIGHT, STEP, GROUP, GROUPS, SPAN)
        for span in tl.static_range(SPANS):
            group = tl.minimum((step * STEP + span * SPAN) // GROUP, GROUPS - 1)
            zero = zero_of(bits[span], zeros, group * HEIGHT + row, INSIDE)[:, None]
            zero = (zero + offset_of(dtype)).to(dtype)
            scale = scale_of(bits[span], INSIDE)[:, None]
            summed = total
            if not WHOLE:
                summed = tl.zeros([BLOCK_N, M], tl.float32)
            for part in tl.static_range(SPAN // DOT):
                here = step * STEP + span * SPAN + part * DOT + k
                inside = (m < rows)[None, :]
                if STEPS * STEP != K:
                    inside = inside & (here < K)[:, None]
                terms = tl.load(x + m[None, :].to(tl.int64) * K + here[:, None], mask=inside, other=0.0)
                w = joined(word, upper, span * NIBBLES + part * (DOT // WORDS), DOT // WORDS, dtype, PTX) - zero
                if WHOLE:
                    w *= scale.to(dtype)
                summed = tl.dot(w, terms, summed, input_precision="ieee")
            if WHOLE:
                total = summed
            else:
                total += summed * scale
        if AHEAD:
            bits = ahead

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
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    gated: bool = False,
    counters: Tensor | None = None,
    ptx: bool = True,
) -> None:
    """Run the kernel; x: [T, K], out: [T, N], the other arguments are those of ``product``.
    ptx: use instructions that Triton's language does not have, on a GPU."""
    rows, width = out.shape
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
        bias,
        residual,
        parts,
        counters if tiling.split > 1 else None,
        rows,
        width,
        K=weight.in_features,
        GROUP=weight.kernel_group,
        GROUPS=weight.groups,
        INSIDE=weight.inside,
        M=tiling.block_m,
        GATED=gated,
        BLOCK_N=tiling.block_n,
        SPLIT=tiling.split,
        STAGES=tiling.stages,
        WHOLE=tiling.whole,
        STEP=tiling.step,
        TERMS=tiling.terms,
        PTX=ptx and x.is_cuda,
        num_warps=tiling.warps,
        **({"maxnreg": tiling.registers} if tiling.registers else {}),
        **launch_options(x.device),
    )
