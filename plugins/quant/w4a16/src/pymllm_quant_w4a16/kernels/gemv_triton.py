"""y = x W^T of 4-bit weights for one row of x, where reading W once, at the full speed of memory, is all that counts.

A nibble becomes a float32 without a conversion: in the mantissa of 16 (or of 256, where that saves a shift) it is
exactly 16 + n (Kim et al. 2022, "Who Says Elephants Can't Run", to 32 bits). A group's sum of (16 + n) x then
has 16 + zero times the sum of x too many, which is subtracted once a group. Sums are float32 in registers.

The first words of W are fetched before the kernel ahead has ended, and the rest of a program's words is asked for in
L2. Programs either make one block of outputs each, or are as many as run at a time, and keep x in registers. A norm
before the product is linear but for one factor, 1 / sqrt(mean(x^2) + eps), which one pass over x gives.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from pymllm.layers.kernels.dependent import launch_dependents, launch_options, wait
from pymllm_quant_w4a16.kernels.scales_triton import scale_of, zero_of
from pymllm_quant_w4a16.layout import Weight4
from pymllm_quant_w4a16.tiling import Tiling

BLOCK_K = tl.constexpr(256)
WORDS = tl.constexpr(32)
"""Of a block of the layout, which has 8 terms a word."""

FETCH = tl.constexpr(
    "{ .reg .pred p; .reg .b32 t; mov.u32 t, %tid.x; setp.eq.u32 p, t, 0;"
    " @p cp.async.bulk.prefetch.L2.global [$1], $2; mov.u32 $0, 0; }"
)


@triton.jit
def fetch(pointer, size):
    """Ask for so many bytes of memory in L2 (compute capability 9.0); both are multiples of 16."""
    tl.inline_asm_elementwise(FETCH, "=r,l,r", [pointer.to(tl.int64), size], dtype=tl.int32, is_pure=False, pack=1)


@triton.jit
def touch(pointers):
    """Load 16 bits from each of these addresses, so that their cache lines are near when they are needed."""
    tl.inline_asm_elementwise(
        "ld.global.b16 $0, [$1];", "=h,l", [pointers.to(tl.int64)], dtype=tl.int16, is_pure=False, pack=1
    )


MASKED = tl.constexpr("lop3.b32 $0, $1, $2, $3, 0xea;")


@triton.jit
def masked(word, mask: tl.constexpr, base: tl.constexpr, PTX: tl.constexpr):
    """(word & mask) | base as float32. PTX: in one instruction, which the compiler does not find by itself."""
    if PTX:
        number = tl.inline_asm_elementwise(
            MASKED, "=r,r,r,r", [word, mask, base], dtype=tl.float32, is_pure=True, pack=1
        )
    else:
        number = ((word & mask) | base).to(tl.float32, bitcast=True)
    return number


@triton.jit
def raised(word, nibble: tl.constexpr, PTX: tl.constexpr):
    """Words -> their nibble of that number + 16 if it is odd, + 256 if it is even, float32. Two share a shift."""
    SHIFT: tl.constexpr = 15 - nibble // 2 * 8
    if SHIFT > 0:
        word = word << SHIFT
    else:
        word = word >> -SHIFT
    if nibble % 2:
        number = masked(word, 0x00780000, 0x41800000, PTX)
    else:
        number = masked(word, 0x00078000, 0x43800000, PTX)
    return number


@triton.jit
def _part(x, norm_weight, here, K: tl.constexpr, EXACT: tl.constexpr):
    """Terms of x, times the norm's weight, float32. EXACT: none are past the end."""
    if EXACT:
        part = tl.load(x + here).to(tl.float32)
        if norm_weight is not None:
            part *= tl.load(norm_weight + here).to(tl.float32)
    else:
        part = tl.load(x + here, mask=here < K, other=0.0).to(tl.float32)
        if norm_weight is not None:
            part *= tl.load(norm_weight + here, mask=here < K, other=0.0).to(tl.float32)
    return part


@triton.jit
def _parts(
    x, norm_weight, step: tl.constexpr, K: tl.constexpr, NIBBLES: tl.constexpr, CHUNK: tl.constexpr, EXACT: tl.constexpr
):
    """Terms of x that go with a step's nibbles, NIBBLES of [1, CHUNK, 8, 4], float32."""
    block = step * CHUNK + tl.arange(0, CHUNK)
    place = block[:, None, None] * BLOCK_K + tl.arange(0, 8)[None, :, None] * 4 + tl.arange(0, 4)[None, None, :]
    found = ()
    for nibble in tl.static_range(NIBBLES):
        part = _part(x, norm_weight, place + nibble * WORDS, K, EXACT)[None, :, :, :]
        found = found + (part,)  # type: ignore[assignment]  # noqa: RUF005 - Triton unpacks none
    return found


@triton.jit
def _words(words, row, known, step: tl.constexpr, BLOCKS: tl.constexpr, CHUNK: tl.constexpr):
    """Words of those rows and of CHUNK blocks, [rows, CHUNK, 8, 4]: a thread has four neighbours, and its neighbours
    have the next. What is past the end or not known is 0 and costs no traffic; W goes past the first-level cache, which
    keeps x."""
    i = step * CHUNK * WORDS + tl.arange(0, CHUNK * WORDS)
    at = (row[:, None] * BLOCKS) * WORDS + i[None, :]
    inside = (i < BLOCKS * WORDS)[None, :] & known
    word = tl.load(words + at, mask=inside, other=0, eviction_policy="evict_first")
    return tl.reshape(word, [row.shape[0], CHUNK, 8, 4])


@triton.jit
def _step(
    words,
    scales,
    row,
    known,
    step: tl.constexpr,
    N,
    BLOCKS: tl.constexpr,
    GROUP: tl.constexpr,
    GROUPS: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """A step's words, and, for each span of a block, words of scales, [rows, CHUNK]; past the end of K, 0."""
    SPAN: tl.constexpr = GROUP if GROUP < BLOCK_K else BLOCK_K
    found = (_words(words, row, known, step, BLOCKS, CHUNK),)
    block = step * CHUNK + tl.arange(0, CHUNK)
    for span in tl.static_range(BLOCK_K // SPAN):
        group = (block * BLOCK_K + span * SPAN) // GROUP
        inside = ((block < BLOCKS) & (group < GROUPS))[None, :] & known
        at = scales + row[:, None] + group[None, :] * N
        found = found + (tl.load(at, mask=inside, other=0),)  # type: ignore[assignment]  # noqa: RUF005
    return found


@triton.jit
def _pair(
    words,
    scales,
    row,
    known,
    step: tl.constexpr,
    N,
    BLOCKS: tl.constexpr,
    GROUP: tl.constexpr,
    GROUPS: tl.constexpr,
    CHUNK: tl.constexpr,
    GATED: tl.constexpr,
):
    """A step of those rows and, where GATED, of the ups that go with them; else the same again."""
    gate = _step(words, scales, row, known, step, N, BLOCKS, GROUP, GROUPS, CHUNK)
    up = gate
    if GATED:
        up = _step(words, scales, row + N // 2, known, step, N, BLOCKS, GROUP, GROUPS, CHUNK)
    return gate, up


@triton.jit
def _summed(
    loaded,
    parts,
    zeros,
    row,
    total,
    step: tl.constexpr,
    N,
    GROUP: tl.constexpr,
    GROUPS: tl.constexpr,
    INSIDE: tl.constexpr,
    CHUNK: tl.constexpr,
    PTX: tl.constexpr,
):
    """total, [rows, CHUNK, 8], and what a step adds to it."""
    SPAN: tl.constexpr = GROUP if GROUP < BLOCK_K else BLOCK_K
    NIBBLES: tl.constexpr = SPAN // WORDS
    word = loaded[0]
    block = step * CHUNK + tl.arange(0, CHUNK)
    for span in tl.static_range(BLOCK_K // SPAN):
        raised_sum = tl.zeros(word.shape, tl.float32)
        # The same for all rows, but in the rows' registers, so that nothing has to move; the compiler sees it.
        even = raised_sum
        odd = raised_sum
        for index in tl.static_range(NIBBLES):
            part = parts[span * NIBBLES + index]
            raised_sum += raised(word, span * NIBBLES + index, PTX) * part
            if (span * NIBBLES + index) % 2:
                odd += part
            else:
                even += part
        of_even, of_odd = tl.sum(even, 3), tl.sum(odd, 3)
        bits = loaded[1 + span]
        group = tl.minimum((block * BLOCK_K + span * SPAN) // GROUP, GROUPS - 1)
        zero = zero_of(bits, zeros, row[:, None] + group[None, :] * N, INSIDE)[:, :, None]
        # Without what was added to the nibbles, and the zero points.
        raised_sum3 = tl.sum(raised_sum, 3) - (256.0 * of_even + 16.0 * of_odd) - zero * (of_even + of_odd)
        total += scale_of(bits, INSIDE)[:, :, None] * raised_sum3
    return total


@triton.jit
def gemv_kernel(
    x,
    words,
    scales,
    zeros,
    out,
    norm_weight,
    bias,
    residual,
    eps,
    N,
    K: tl.constexpr,
    GROUP: tl.constexpr,
    GROUPS: tl.constexpr,
    WIDTH: tl.constexpr,
    INSIDE: tl.constexpr,
    GATED: tl.constexpr,
    BLOCK_N: tl.constexpr,
    CHUNK: tl.constexpr,
    STAGES: tl.constexpr,
    KEEP: tl.constexpr,
    PTX: tl.constexpr,
    PDL: tl.constexpr,
):
    """A program makes BLOCK_N outputs, CHUNK blocks of K at a time; STAGES times as many are on their way, at first
    before the kernel ahead has ended. KEEP: x stays in registers, and a program goes on with other outputs, whose words
    are fetched meanwhile.

    N: outputs; W has as many rows, or, where GATED, gates and below them ups. WIDTH: the power of two at or above K.
    """
    launch_dependents(PDL)
    BLOCKS: tl.constexpr = (K + BLOCK_K - 1) // BLOCK_K
    STEPS: tl.constexpr = (BLOCKS + CHUNK - 1) // CHUNK
    DEPTH: tl.constexpr = STAGES if STAGES < STEPS else STEPS
    EXACT: tl.constexpr = STEPS * CHUNK * BLOCK_K == K
    HEIGHT = 2 * N if GATED else N
    start = tl.program_id(0) * BLOCK_N
    stride = tl.num_programs(0) * BLOCK_N
    # Rows past the end are the last one again: cheaper than a mask, and not stored.
    row = tl.minimum(start + tl.arange(0, BLOCK_N), N - 1)
    loaded = ()
    for step in tl.static_range(DEPTH):
        more = _pair(words, scales, row, True, step, HEIGHT, BLOCKS, GROUP, GROUPS, CHUNK, GATED)
        loaded = loaded + (more,)  # type: ignore[assignment]  # noqa: RUF005
    if PDL:
        # Of each 64 bytes of x or the norm's weight, the first term.
        LINES: tl.constexpr = (WIDTH + 31) // 32
        line = tl.minimum(tl.arange(0, LINES) * 32, K - 1)
        if DEPTH < STEPS:
            size = tl.minimum(BLOCK_N, N - start) * (BLOCKS * WORDS * 4)
            fetch(words + start * (BLOCKS * WORDS), size)
            if GATED:
                fetch(words + (start + N) * (BLOCKS * WORDS), size)
        if norm_weight is not None:
            touch(norm_weight + line)
    wait(PDL)

    factor = 1.0
    if norm_weight is not None:
        whole = tl.load(x + tl.arange(0, WIDTH), mask=tl.arange(0, WIDTH) < K, other=0.0).to(tl.float32)
        factor = tl.rsqrt(tl.sum(whole * whole, 0) / K + eps)
    elif PDL:
        touch(x + line)
    kept = ()
    if KEEP:
        for step in tl.static_range(STEPS):
            kept = kept + (_parts(x, norm_weight, step, K, 8, CHUNK, EXACT),)  # type: ignore[assignment]  # noqa: RUF005

    turns = 1
    if KEEP:
        turns = tl.cdiv(N - start, stride)
    for turn in range(turns):
        n = start + turn * stride + tl.arange(0, BLOCK_N)
        row = tl.minimum(n, N - 1)
        next_row = tl.minimum(n + stride, N - 1)
        goes_on = turn + 1 < turns
        total = tl.zeros([BLOCK_N, CHUNK, 8], tl.float32)
        up_total = total
        ahead = loaded
        for step in tl.static_range(STEPS):
            gate, up = ahead[0]  # type: ignore[misc]
            ahead = ahead[1:]
            if step + DEPTH < STEPS:
                more = _pair(words, scales, row, True, step + DEPTH, HEIGHT, BLOCKS, GROUP, GROUPS, CHUNK, GATED)
                ahead = ahead + (more,)  # type: ignore[assignment]  # noqa: RUF005
            elif KEEP:
                step_after = step + DEPTH - STEPS
                more = _pair(words, scales, next_row, goes_on, step_after, HEIGHT, BLOCKS, GROUP, GROUPS, CHUNK, GATED)
                ahead = ahead + (more,)  # type: ignore[assignment]  # noqa: RUF005
            if KEEP:
                parts = kept[step]  # type: ignore[var-annotated]
            else:
                parts = _parts(x, norm_weight, step, K, 8, CHUNK, EXACT)
            total = _summed(gate, parts, zeros, row, total, step, HEIGHT, GROUP, GROUPS, INSIDE, CHUNK, PTX)
            if GATED:
                up_total = _summed(up, parts, zeros, row + N, up_total, step, HEIGHT, GROUP, GROUPS, INSIDE, CHUNK, PTX)
        if KEEP:
            loaded = ahead

        y = tl.sum(tl.reshape(total, [BLOCK_N, CHUNK * 8]), 1) * factor
        if bias is not None:
            y += tl.load(bias + row).to(tl.float32)
        if GATED:
            upper = tl.sum(tl.reshape(up_total, [BLOCK_N, CHUNK * 8]), 1) * factor
            if bias is not None:
                upper += tl.load(bias + N + row).to(tl.float32)
            y = y / (1.0 + tl.exp(-y)) * upper
        if residual is not None:
            y += tl.load(residual + n, mask=n < N, other=0.0).to(tl.float32)
        tl.store(out + n, y.to(out.dtype.element_ty), mask=n < N)


def launch_gemv(
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
    ptx: bool = True,
) -> None:
    """Run the kernel; x: [1, K], out: [1, N], the other arguments are those of ``product``. ptx: use instructions that
    Triton's language does not have, on a GPU."""
    width = out.shape[1]
    blocks = triton.cdiv(width, tiling.block_n)
    gemv_kernel[(min(blocks, tiling.programs or blocks),)](
        x,
        weight.words,
        weight.scales,
        weight.zeros,
        out,
        norm_weight,
        bias,
        residual,
        eps,
        width,
        K=weight.in_features,
        GROUP=weight.kernel_group,
        GROUPS=weight.groups,
        WIDTH=triton.next_power_of_2(weight.in_features),
        INSIDE=weight.inside,
        GATED=gated,
        BLOCK_N=tiling.block_n,
        CHUNK=tiling.chunk,
        STAGES=tiling.stages,
        KEEP=tiling.programs > 0,
        PTX=ptx and x.is_cuda,
        num_warps=tiling.warps,
        **launch_options(x.device),
    )
