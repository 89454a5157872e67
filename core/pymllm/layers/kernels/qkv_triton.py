"""The Triton kernel behind :func:`pymllm.layers.kernels.write_qkv`."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from pymllm.layers.kernels.dependent import launch_dependents, launch_options, wait


@triton.jit(do_not_specialize=["rows"])
def write_qkv_kernel(
    qkv,
    q_out,
    k_cache,
    v_cache,
    slots,
    positions,
    cos_sin,
    q_weight,
    k_weight,
    rows,
    eps,
    page_size,
    k_page,
    k_token,
    k_head,
    v_page,
    v_token,
    v_head,
    H: tl.constexpr,
    K: tl.constexpr,
    D: tl.constexpr,
    ROTARY: tl.constexpr,
    BLOCK_D: tl.constexpr,
    ROWS: tl.constexpr,
    PDL: tl.constexpr,
):
    """A row is one head of one token, in the order of qkv's memory; a program takes ROWS of them."""
    launch_dependents(PDL)
    wait(PDL)
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    live = row < rows
    token = row // (H + 2 * K)
    head = (row % (H + 2 * K)).to(tl.int32)
    is_q, is_v = head < H, head >= H + K
    d = tl.arange(0, BLOCK_D)
    inside = live[:, None] & (d < D)[None, :]
    source = qkv + row[:, None] * D
    x = tl.load(source + d[None, :], mask=inside, other=0.0).to(tl.float32)
    y = x

    half: tl.constexpr = ROTARY // 2
    turned = d < ROTARY
    partner = tl.where(d < half, d + half, d - half)
    rotates = live[:, None] & turned[None, :] & (head < H + K)[:, None]
    other = x
    if ROTARY > 0:
        other = tl.load(source + partner[None, :], mask=rotates, other=0.0).to(tl.float32)

    if q_weight is not None or k_weight is not None:
        root = tl.rsqrt(tl.sum(x * x, 1) / D + eps)[:, None]
        if q_weight is not None:
            chosen = is_q[:, None]
            weight = tl.load(q_weight + d, mask=d < D, other=0.0).to(tl.float32)[None, :]
            y = tl.where(chosen, x * root * weight, y)
            if ROTARY > 0:
                weight = tl.load(q_weight + partner, mask=turned, other=0.0).to(tl.float32)[None, :]
                other = tl.where(chosen, other * root * weight, other)
        if k_weight is not None:
            chosen = ((head >= H) & (head < H + K))[:, None]
            weight = tl.load(k_weight + d, mask=d < D, other=0.0).to(tl.float32)[None, :]
            y = tl.where(chosen, x * root * weight, y)
            if ROTARY > 0:
                weight = tl.load(k_weight + partner, mask=turned, other=0.0).to(tl.float32)[None, :]
                other = tl.where(chosen, other * root * weight, other)

    if ROTARY > 0:
        position = tl.load(positions + token, mask=live, other=0)
        angle = cos_sin + position[:, None] * ROTARY + tl.where(d < half, d, d - half)[None, :]
        cos = tl.load(angle, mask=rotates, other=1.0)
        sin = tl.load(angle + half, mask=rotates, other=0.0)
        y = y * cos + tl.where((d < half)[None, :], -other, other) * sin

    tl.store(
        q_out + (token * H + head)[:, None] * D + d[None, :],
        y.to(q_out.dtype.element_ty),
        mask=inside & is_q[:, None],
    )
    slot = tl.load(slots + token, mask=live, other=0).to(tl.int64)
    page, offset = slot // page_size, slot % page_size
    k_place = page * k_page + offset * k_token + (head - H) * k_head
    v_place = page * v_page + offset * v_token + (head - H - K) * v_head
    is_k = (head >= H) & (head < H + K)
    tl.store(k_cache + k_place[:, None] + d[None, :], y.to(k_cache.dtype.element_ty), mask=inside & is_k[:, None])
    tl.store(v_cache + v_place[:, None] + d[None, :], y.to(v_cache.dtype.element_ty), mask=inside & is_v[:, None])


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
    eps: float,
) -> None:
    """Run the kernel; the arguments are write_qkv's, checked there."""
    tokens, heads, size = q_out.shape
    kv_heads = k_cache.shape[2]
    rows = tokens * (heads + 2 * kv_heads)
    # A decode step is bound by latency: one warp a head. A long prefill by bandwidth: fewer, larger programs.
    per_program = 1 if rows <= 8192 else 8
    write_qkv_kernel[(triton.cdiv(rows, per_program),)](
        qkv,
        q_out,
        k_cache,
        v_cache,
        slots,
        positions,
        cos_sin,
        q_weight,
        k_weight,
        rows,
        eps,
        k_cache.shape[1],
        *k_cache.stride()[:3],
        *v_cache.stride()[:3],
        H=heads,
        K=kv_heads,
        D=size,
        ROTARY=0 if cos_sin is None else cos_sin.shape[1],
        BLOCK_D=triton.next_power_of_2(size),
        ROWS=per_program,
        num_warps=1 if per_program == 1 else 4,
        **launch_options(qkv.device),
    )


