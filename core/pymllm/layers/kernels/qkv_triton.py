"""The Triton kernel behind :func:`pymllm.layers.kernels.write_qkv`."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from pymllm.layers.kernels.codes import code_bits
from pymllm.layers.kernels.codes_triton import finite, make_codes, make_scales
from pymllm.layers.kernels.dependent import launch_dependents, launch_options, wait
from pymllm.layers.kernels.storage import kernel_cache
from pymllm.layers.kernels.storage_triton import to_cache


@triton.jit
def _take(source, live, D: tl.constexpr, HALF: tl.constexpr, BLOCK_HALF: tl.constexpr, BLOCK_REST: tl.constexpr):
    """Heads [TOKENS, D] in three parts, float32: the two halves that are rotated, and the rest."""
    d = tl.arange(0, BLOCK_HALF)
    r = 2 * HALF + tl.arange(0, BLOCK_REST)
    inside = live[:, None] & (d < HALF)[None, :]
    beyond = live[:, None] & (r < D)[None, :]
    a = tl.load(source[:, None] + d[None, :], mask=inside, other=0.0).to(tl.float32)
    b = tl.load(source[:, None] + HALF + d[None, :], mask=inside, other=0.0).to(tl.float32)
    rest = tl.load(source[:, None] + r[None, :], mask=beyond, other=0.0).to(tl.float32)
    return a, b, rest


@triton.jit
def _norm(
    a, b, rest, weight, eps, D: tl.constexpr, HALF: tl.constexpr, BLOCK_HALF: tl.constexpr, BLOCK_REST: tl.constexpr
):
    """The parts of heads after their RMS norm; weight: [D] or None, no norm."""
    if weight is not None:
        d = tl.arange(0, BLOCK_HALF)
        r = 2 * HALF + tl.arange(0, BLOCK_REST)
        squares = tl.sum(a * a, 1) + tl.sum(b * b, 1) + tl.sum(rest * rest, 1)
        factor = tl.rsqrt(squares / D + eps)[:, None]
        a *= factor * tl.load(weight + d, mask=d < HALF, other=0.0).to(tl.float32)[None, :]
        b *= factor * tl.load(weight + HALF + d, mask=d < HALF, other=0.0).to(tl.float32)[None, :]
        rest *= factor * tl.load(weight + r, mask=r < D, other=0.0).to(tl.float32)[None, :]
    return a, b, rest


@triton.jit
def _put(
    target, a, b, rest, live, D: tl.constexpr, HALF: tl.constexpr, BLOCK_HALF: tl.constexpr, BLOCK_REST: tl.constexpr
):
    """Store the parts of heads; target: [TOKENS] pointers."""
    d = tl.arange(0, BLOCK_HALF)
    r = 2 * HALF + tl.arange(0, BLOCK_REST)
    inside = live[:, None] & (d < HALF)[None, :]
    kind = target.dtype.element_ty
    tl.store(target[:, None] + d[None, :], to_cache(a, kind), mask=inside)
    tl.store(target[:, None] + HALF + d[None, :], to_cache(b, kind), mask=inside)
    tl.store(target[:, None] + r[None, :], to_cache(rest, kind), mask=live[:, None] & (r < D)[None, :])


@triton.jit
def _bounds(least, largest, broken, x, inside):
    """The bounds of vectors [TOKENS] widened by a part of them, [TOKENS, N]; whether there was a NaN."""
    least = tl.minimum(least, tl.min(tl.where(inside, finite(x), float("inf")), 1))
    largest = tl.maximum(largest, tl.max(tl.where(inside, finite(x), float("-inf")), 1))
    return least, largest, broken | tl.max((inside & (x != x)).to(tl.int32), 1)


@triton.jit
def _put_codes(
    target,
    scales,
    a,
    b,
    rest,
    live,
    BITS: tl.constexpr,
    D: tl.constexpr,
    HALF: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
    BLOCK_REST: tl.constexpr,
):
    """Quantize and store the parts of heads; target: [TOKENS] pointers to codes; scales: to scales. Of 4 bits, there is
    no rest: the halves share bytes."""
    d = tl.arange(0, BLOCK_HALF)
    r = 2 * HALF + tl.arange(0, BLOCK_REST)
    inside = live[:, None] & (d < HALF)[None, :]
    beyond = live[:, None] & (r < D)[None, :]
    in_half, in_rest = (d < HALF)[None, :], (r < D)[None, :]
    least = tl.full([a.shape[0]], float("inf"), tl.float32)
    largest = tl.full([a.shape[0]], float("-inf"), tl.float32)
    broken = tl.zeros([a.shape[0]], tl.int32)
    least, largest, broken = _bounds(least, largest, broken, a, in_half)
    least, largest, broken = _bounds(least, largest, broken, b, in_half)
    if 2 * HALF < D:
        least, largest, broken = _bounds(least, largest, broken, rest, in_rest)
    word, scale, offset = make_scales(least, largest, broken, BITS)
    tl.store(scales, word, mask=live)
    a = make_codes(finite(a), scale[:, None], offset[:, None], BITS)
    b = make_codes(finite(b), scale[:, None], offset[:, None], BITS)
    if BITS == 4:
        tl.store(target[:, None] + d[None, :], (a | (b << 4)).to(tl.uint8), mask=inside)
    else:
        tl.store(target[:, None] + d[None, :], (a - 128).to(tl.int8), mask=inside)
        tl.store(target[:, None] + HALF + d[None, :], (b - 128).to(tl.int8), mask=inside)
        if 2 * HALF < D:
            rest = make_codes(finite(rest), scale[:, None], offset[:, None], BITS)
            tl.store(target[:, None] + r[None, :], (rest - 128).to(tl.int8), mask=beyond)


@triton.jit(do_not_specialize=["tokens"])
def write_qkv_kernel(
    qkv,
    q_out,
    k_cache,
    v_cache,
    k_scales,
    v_scales,
    slots,
    positions,
    cos_sin,
    q_weight,
    k_weight,
    tokens,
    q_eps,
    k_eps,
    page_size,
    k_page,
    k_token,
    k_head,
    v_page,
    v_token,
    v_head,
    SCALE_PAGE: tl.constexpr,
    SCALE_TOKEN: tl.constexpr,
    SCALE_HEAD: tl.constexpr,
    BITS: tl.constexpr,
    H: tl.constexpr,
    K: tl.constexpr,
    D: tl.constexpr,
    HALF: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
    BLOCK_REST: tl.constexpr,
    TOKENS: tl.constexpr,
    PDL: tl.constexpr,
):
    """A program takes one head of TOKENS tokens: q's heads, then k's, then v's. HALF: of the rotated components.
    BITS: of the codes that the cache holds, with k_scales and v_scales beside them; 0: it holds numbers."""
    launch_dependents(PDL)
    token = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    head = tl.program_id(1)
    live = token < tokens
    wait(PDL)
    # All loads that need no other go first, so that a program waits for memory twice, not four times.
    a, b, rest = _take(qkv + (token.to(tl.int64) * (H + 2 * K) + head) * D, live, D, HALF, BLOCK_HALF, BLOCK_REST)
    slot = tl.load(slots + token, mask=live, other=0).to(tl.int64)

    if head < H + K:
        d = tl.arange(0, BLOCK_HALF)
        cos = tl.full([TOKENS, BLOCK_HALF], 1.0, tl.float32)
        sin = tl.zeros([TOKENS, BLOCK_HALF], tl.float32)
        if cos_sin is not None:
            position = tl.load(positions + token, mask=live, other=0).to(tl.int64)
            angle = cos_sin + position[:, None] * (2 * HALF) + d[None, :]
            inside = live[:, None] & (d < HALF)[None, :]
            cos = tl.load(angle, mask=inside, other=1.0)
            sin = tl.load(angle + HALF, mask=inside, other=0.0)
        if head < H:
            a, b, rest = _norm(a, b, rest, q_weight, q_eps, D, HALF, BLOCK_HALF, BLOCK_REST)
            q_place = q_out + (token.to(tl.int64) * H + head) * D
            _put(q_place, a * cos - b * sin, b * cos + a * sin, rest, live, D, HALF, BLOCK_HALF, BLOCK_REST)
        else:
            a, b, rest = _norm(a, b, rest, k_weight, k_eps, D, HALF, BLOCK_HALF, BLOCK_REST)
            k_place = (
                k_cache + slot // page_size * k_page + slot % page_size * k_token + (head - H).to(tl.int64) * k_head
            )
            a, b = a * cos - b * sin, b * cos + a * sin
            if BITS > 0:
                scale_place = k_scales + slot // page_size * SCALE_PAGE + slot % page_size * SCALE_TOKEN
                scale_place += (head - H).to(tl.int64) * SCALE_HEAD
                _put_codes(k_place, scale_place, a, b, rest, live, BITS, D, HALF, BLOCK_HALF, BLOCK_REST)
            else:
                _put(k_place, a, b, rest, live, D, HALF, BLOCK_HALF, BLOCK_REST)
    else:
        v_place = (
            v_cache + slot // page_size * v_page + slot % page_size * v_token + (head - H - K).to(tl.int64) * v_head
        )
        if BITS > 0:
            scale_place = v_scales + slot // page_size * SCALE_PAGE + slot % page_size * SCALE_TOKEN
            scale_place += (head - H - K).to(tl.int64) * SCALE_HEAD
            _put_codes(v_place, scale_place, a, b, rest, live, BITS, D, HALF, BLOCK_HALF, BLOCK_REST)
        else:
            _put(v_place, a, b, rest, live, D, HALF, BLOCK_HALF, BLOCK_REST)


def launch(
    qkv: Tensor,
    q_out: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slots: Tensor,
    positions: Tensor,
    cos_sin: Tensor | None,
    q_weight: Tensor | None,
    k_weight: Tensor | None,
    q_eps: float,
    k_eps: float,
    k_scales: Tensor | None = None,
    v_scales: Tensor | None = None,
) -> None:
    """Run the kernel; the arguments are write_qkv's, checked there."""
    tokens, heads, size = q_out.shape
    kv_heads = k_cache.shape[2]
    bits = 0
    scale_strides: tuple[int, ...] = (0, 0, 0)
    if k_scales is None:
        k_cache, v_cache = kernel_cache(k_cache), kernel_cache(v_cache)
    else:
        bits, scale_strides = code_bits(k_cache.dtype), k_scales.stride()
    # Without a rotation the halves are halves all the same, so that they are not empty blocks.
    half = size // 2 if cos_sin is None else cos_sin.shape[1] // 2
    # A decode step is bound by latency: one warp a head, and no more programs than a GPU holds at once. A long prefill
    # is bound by bandwidth: fewer, larger programs.
    per_program = 1 if tokens <= 32 else 4 if tokens <= 512 else 16
    write_qkv_kernel[(triton.cdiv(tokens, per_program), heads + 2 * kv_heads)](
        qkv,
        q_out,
        k_cache,
        v_cache,
        k_scales,
        v_scales,
        slots,
        positions,
        cos_sin,
        q_weight,
        k_weight,
        tokens,
        q_eps,
        k_eps,
        k_cache.shape[1],
        *k_cache.stride()[:3],
        *v_cache.stride()[:3],
        *scale_strides,
        BITS=bits,
        H=heads,
        K=kv_heads,
        D=size,
        HALF=half,
        BLOCK_HALF=triton.next_power_of_2(half),
        BLOCK_REST=triton.next_power_of_2(max(1, size - 2 * half)),
        TOKENS=per_program,
        num_warps=1 if per_program == 1 else 4,
        **launch_options(qkv.device),
    )
