"""Attention, norm and rotation in float64 NumPy: the reference of the attention kit.

Shape suffixes: T tokens of a request, H query heads, K key/value heads, D head size.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def attention(q: Array, k: Array, v: Array, scale: float, *, causal: bool = True) -> Array:
    """softmax(scale q k^T) v. q: [Tq, H, D]; k, v: [Tk, K, D] -> [Tq, H, D].

    causal: query i stands at position Tk - Tq + i and sees the keys up to its own.
    """
    group = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
    scores = scale * np.einsum("qhd,khd->hqk", q, k)
    if causal:
        position = np.arange(len(k) - len(q), len(k))
        scores = np.where(np.arange(len(k)) <= position[:, None], scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    out: Array = np.einsum("hqk,khd->qhd", weights, v)
    return out


def round_to_bits(x: Array, bits: int, least_exponent: int, most: float) -> Array:
    """The nearest numbers with ``bits`` bits of mantissa after the first and exponents from ``least_exponent`` on,
    ties to even; at most ``most`` in magnitude."""
    exponent = np.maximum(np.frexp(x)[1] - 1, least_exponent)
    step = np.ldexp(1.0, exponent - bits)
    out: Array = np.clip(np.round(x / step) * step, -most, most)
    return out


def round_to_e4m3(x: Array) -> Array:
    """As float8_e4m3fn holds it, saturated (Micikevicius et al. 2022)."""
    return round_to_bits(x, 3, -6, 448.0)


def round_to_bf16(x: Array) -> Array:
    """As bfloat16 holds it."""
    return round_to_bits(x, 7, -126, np.inf)


def round_to_codes(x: Array, bits: int) -> Array:
    """Vectors over the last axis as ``2^bits`` evenly spaced numbers between their least and largest hold them: scale
    and offset rounded to float16, codes to the nearest (half up); a vector with a NaN is NaN."""
    most = 2**bits - 1
    least, largest = x.min(-1, keepdims=True), x.max(-1, keepdims=True)
    offset = least.astype(np.float16).astype(np.float64)
    scale = ((largest - least) / most).astype(np.float16).astype(np.float64)
    steps = np.divide(x - offset, scale, out=np.zeros_like(x), where=scale != 0)
    out: Array = offset + scale * np.clip(np.floor(steps + 0.5), 0, most)
    return out


def rms_norm(x: Array, weight: Array, eps: float) -> Array:
    """x / sqrt(mean(x^2) + eps) * weight over the last axis (Zhang and Sennrich 2019)."""
    out: Array = x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight
    return out


def rotate(x: Array, positions: Array, base: float, rotary_dim: int) -> Array:
    """Rotary embedding of the leading components, halves paired (Su et al. 2021). x: [T, H, D]."""
    half = rotary_dim // 2
    angles = positions[:, None, None] * base ** (-np.arange(half) / half)
    a, b, rest = np.split(x, [half, rotary_dim], axis=-1)
    cos, sin = np.cos(angles), np.sin(angles)
    return np.concatenate([a * cos - b * sin, b * cos + a * sin, rest], axis=-1)
