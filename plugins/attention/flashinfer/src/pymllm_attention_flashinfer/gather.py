"""A packed copy of keys and values that lie in pages, by a kernel in Triton."""
# Triton compiles the kernel; its parameters have no Python types, and constants are named as such.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit(do_not_specialize=["page_size"])
def gather_kernel(
    k, v, k_out, v_out, slots, page_size, PAGE_STRIDE: tl.constexpr, TOKEN_STRIDE: tl.constexpr,
    HEAD_STRIDE: tl.constexpr, K: tl.constexpr, D: tl.constexpr, HEADS: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """A program copies one token. HEADS, SIZE: K and D, rounded up to powers of two."""
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + token)
    head, part = tl.arange(0, HEADS)[:, None], tl.arange(0, SIZE)[None, :]
    inside = (head < K) & (part < D)
    source = slot // page_size * PAGE_STRIDE + slot % page_size * TOKEN_STRIDE + head * HEAD_STRIDE + part
    target = token * K * D + head * D + part
    tl.store(k_out + target, tl.load(k + source, mask=inside), mask=inside)
    tl.store(v_out + target, tl.load(v + source, mask=inside), mask=inside)


def gather(k: Tensor, v: Tensor, slots: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and values in ``slots`` [T], int64, of k and v, [pages, S, K, D] with the same strides and 1 within a head
    -> [T, K, D] each."""
    assert k.stride() == v.stride(), "keys and values lie alike"
    _, page_size, heads, size = k.shape
    copies = torch.empty(2, len(slots), heads, size, dtype=k.dtype, device=k.device)
    gather_kernel[(len(slots),)](
        k, v, copies[0], copies[1], slots, page_size, *k.stride()[:3], heads, size,
        triton.next_power_of_2(heads), triton.next_power_of_2(size),
    )  # fmt: skip
    return copies[0], copies[1]
