"""Philox4x32-10: random numbers that are a function of (seed, position) and of nothing else.

Source: Salmon, Moraes, Dror and Shaw, "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011, section 3.3.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

_ROUNDS = 10
_MULTIPLIER_0 = np.uint64(0xD2511F53)
_MULTIPLIER_1 = np.uint64(0xCD9E8D57)
_WEYL = np.array([[0x9E3779B9], [0xBB67AE85]], dtype=np.uint64)
_WEYL_SUMS = np.arange(_ROUNDS, dtype=np.uint64)[:, None, None] * _WEYL
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_FEW = 6
"""Numbers up to which plain integers are faster than the fixed cost of some eighty array operations."""

_MASK64 = (1 << 64) - 1


def philox4x32(counters: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """Ten rounds. counters: [4, N], keys: [2, N], uint64 arrays of 32-bit words -> [4, N], likewise."""
    # Flat arrays and results in place: at a step's few hundred rows, NumPy's time goes into anything else.
    words = counters.copy()
    c0, c1, c2, c3 = words
    first, second = np.empty((2, *c0.shape), dtype=np.uint64)
    for key0, key1 in (keys + _WEYL_SUMS) & _LOW:
        np.multiply(c0, _MULTIPLIER_0, first)
        np.multiply(c2, _MULTIPLIER_1, second)
        _mix(second, c1, key0, c0)
        _mix(first, c3, key1, c2)
        np.bitwise_and(second, _LOW, c1)
        np.bitwise_and(first, _LOW, c3)
    return words


def _uniform(seed: int, position: int) -> float:
    c0, c1, c2, c3 = position & 0xFFFFFFFF, position >> 32, 0, 0
    key0, key1 = seed & 0xFFFFFFFF, seed >> 32
    for _ in range(_ROUNDS):
        first, second = c0 * 0xD2511F53, c2 * 0xCD9E8D57
        c0, c1, c2, c3 = (
            (second >> 32) ^ c1 ^ key0,
            second & 0xFFFFFFFF,
            (first >> 32) ^ c3 ^ key1,
            first & 0xFFFFFFFF,
        )
        key0, key1 = (key0 + 0x9E3779B9) & 0xFFFFFFFF, (key1 + 0xBB67AE85) & 0xFFFFFFFF
    return ((c0 >> 5 << 26) | (c1 >> 6)) * 2.0**-53


def _mix(product: np.ndarray, word: np.ndarray, key: np.ndarray, out: np.ndarray) -> None:
    np.right_shift(product, _HALF, out)
    np.bitwise_xor(out, word, out)
    np.bitwise_xor(out, key, out)


def uniforms(seeds: Sequence[int], positions: Sequence[int]) -> np.ndarray:
    """One number in [0, 1) with 53 random bits for each (seed, position) -> [N] float64.

    seeds: any integers, taken modulo 2**64. positions: from 0 up.
    """
    return uniforms_of_arrays(
        np.array([value & _MASK64 for value in seeds], dtype=np.uint64), np.array(positions, dtype=np.uint64)
    )


def uniforms_of_arrays(seeds: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """``uniforms`` of uint64 arrays [N]."""
    if len(seeds) <= _FEW:
        return np.array([_uniform(*pair) for pair in zip(seeds.tolist(), positions.tolist())], dtype=np.float64)
    counters = np.zeros((4, len(positions)), dtype=np.uint64)
    counters[0] = positions & _LOW
    counters[1] = positions >> _HALF
    words = philox4x32(counters, np.stack([seeds & _LOW, seeds >> _HALF]))
    bits = ((words[0] >> np.uint64(5)) << np.uint64(26)) | (words[1] >> np.uint64(6))
    return bits * 2.0**-53
