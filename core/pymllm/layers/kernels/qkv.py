"""What lies between the qkv projection and attention, in one pass: norm q and k, rotate, write k and v."""

from __future__ import annotations

import torch
from torch import Tensor

from pymllm.interfaces import AttentionLayer
from pymllm.layers.kernels.available import has_kernels
from pymllm.layers.kernels.codes import code_bits, code_dtype, quantize
from pymllm.layers.kernels.storage import rows_of, stored


def produce(
    layer: AttentionLayer,
    qkv: Tensor,
    positions: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slots: Tensor,
    k_scales: Tensor | None = None,
    v_scales: Tensor | None = None,
) -> Tensor:
    """``AttentionBackend.produce`` in one pass, for a backend whose cache :func:`write_qkv` can write -> q [T, H, D].

    qkv: [T, (H + 2 K) D]; positions: [T]; the rest: as :func:`write_qkv` takes it.
    """
    q_norm, k_norm, rope = layer.q_norm, layer.k_norm, layer.rope
    return write_qkv(
        qkv.contiguous(),
        torch.empty(len(qkv), layer.heads, layer.head_dim, dtype=qkv.dtype, device=qkv.device),
        k_cache,
        v_cache,
        slots,
        positions,
        None if rope is None else rope.cos_sin,
        None if q_norm is None else q_norm.weight,
        None if k_norm is None else k_norm.weight,
        0.0 if q_norm is None else q_norm.eps,
        0.0 if k_norm is None else k_norm.eps,
        k_scales,
        v_scales,
    )


def write_qkv(
    qkv: Tensor,
    q_out: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slots: Tensor,
    positions: Tensor,
    cos_sin: Tensor | None = None,
    q_weight: Tensor | None = None,
    k_weight: Tensor | None = None,
    q_eps: float = 1e-6,
    k_eps: float = 1e-6,
    k_scales: Tensor | None = None,
    v_scales: Tensor | None = None,
) -> Tensor:
    """Write normed and rotated q to ``q_out`` and k and v to their slots of a paged cache; returns ``q_out``.

    qkv: [T, (H + 2 K) D], q then k then v, biases added, contiguous. q_out: [T, H, D], contiguous.
    k_cache, v_cache: views [pages, page_size, K, D] of one layer's cache with any strides but 1 within a head (a
    layout with heads before tokens passes its ``transpose(1, 2)``); they may have another dtype than qkv. In
    float8_e4m3fn, what is beyond its range is written as its largest number.
    slots: [T] integers, page * page_size + offset, >= 0. positions: [T] integers, rows of cos_sin.
    cos_sin: [positions, rotary_dim] float32 as :class:`pymllm.layers.Rope` has it, or None: no rotation. What lies
    past rotary_dim passes. q_weight, k_weight: [D] of the heads' RMS norms, or None: no norm; q_eps, k_eps: theirs.
    k_scales, v_scales: None, or, for a cache of codes (:mod:`pymllm.layers.kernels.codes`), views [pages, page_size, K]
    int32 with the same strides; k_cache and v_cache then hold [..., W] bytes of codes. Of 4 bits, on a GPU, all
    components are rotated or none, and D is even.

    Arithmetic is float32, rounded once at the end: codes are made of float32. On a GPU it is one kernel that may be
    captured in a graph.
    """
    assert qkv.is_contiguous(), "qkv is contiguous"
    assert q_out.is_contiguous(), "q_out is contiguous"
    assert k_cache.stride(3) == v_cache.stride(3) == 1, "a head's components lie side by side"
    if k_scales is not None and v_scales is not None:
        assert k_scales.stride() == v_scales.stride(), "the scales of keys and values lie alike"
    arguments = (
        qkv, q_out, k_cache, v_cache, slots, positions, cos_sin, q_weight, k_weight, q_eps, k_eps, k_scales, v_scales,
    )  # fmt: skip
    if has_kernels(qkv.device):
        whole = cos_sin is None or cos_sin.shape[1] == q_out.shape[2]
        fits = k_scales is None or k_cache.dtype == code_dtype(8) or (whole and q_out.shape[2] % 2 == 0)
        assert fits, "the two codes of a byte are those that are rotated together"
        from pymllm.layers.kernels.qkv_triton import launch

        launch(*arguments)
    else:
        _compose(*arguments)
    return q_out


def _compose(
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
    k_scales: Tensor | None,
    v_scales: Tensor | None,
) -> None:
    """The kernel's twin in PyTorch."""
    heads, kv_heads, page_size = q_out.shape[1], k_cache.shape[2], k_cache.shape[1]
    parts = qkv.view(len(qkv), -1, q_out.shape[2]).float().split([heads, kv_heads, kv_heads], dim=1)
    q, k = _norm(parts[0], q_weight, q_eps), _norm(parts[1], k_weight, k_eps)
    if cos_sin is not None:
        cos, sin = cos_sin[positions.long()].unsqueeze(1).chunk(2, dim=-1)
        q, k = _rotate(q, cos, sin), _rotate(k, cos, sin)
    q_out.copy_(q)
    page, offset = slots.long() // page_size, slots.long() % page_size
    for cache, scales, values in ((k_cache, k_scales, k), (v_cache, v_scales, parts[2])):
        if scales is None:
            rows_of(cache)[page, offset] = rows_of(stored(values, cache.dtype))
        else:
            cache[page, offset], scales[page, offset] = quantize(values, code_bits(cache.dtype))


def _norm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    if weight is None:
        return x
    return x * (x.square().mean(-1, keepdim=True) + eps).rsqrt() * weight.float()


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = cos.shape[-1]
    a, b, rest = x.split([half, half, x.shape[-1] - 2 * half], dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], dim=-1)
