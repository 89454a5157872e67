"""Philox4x32-10: random numbers that are a function of (seed, position) and of nothing else.

Source: Salmon, Moraes, Dror and Shaw, "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011, section 3.3.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

_ROUNDS = 10
_MULTIPLIERS = np.array([[0xD2511F53], [0xCD9E8D57]], dtype=np.uint64)
_WEYL = np.array([[0x9E3779B9], [0xBB67AE85]], dtype=np.uint64)
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_MASK64 = (1 << 64) - 1


def philox4x32(counters: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """Ten rounds. counters: [4, N], keys: [2, N], uint64 arrays of 32-bit words -> [4, N], likewise."""
    multiplied, mixed, keys = counters[0::2], counters[1::2], keys.astype(np.uint64)
    for _ in range(_ROUNDS):
        products = multiplied * _MULTIPLIERS
        multiplied = (products >> _HALF)[::-1] ^ mixed ^ keys
        mixed = (products & _LOW)[::-1]
        keys = (keys + _WEYL) & _LOW
    return np.stack([multiplied[0], mixed[0], multiplied[1], mixed[1]])


def uniforms(seeds: Sequence[int], positions: Sequence[int]) -> np.ndarray:
    """One number in [0, 1) with 53 random bits for each (seed, position) -> [N] float64.

    seeds: any integers, taken modulo 2**64. positions: from 0 up.
    """
    seed = np.array([value & _MASK64 for value in seeds], dtype=np.uint64)
    position = np.array(positions, dtype=np.uint64)
    zero = np.zeros_like(position)
    counters = np.stack([position & _LOW, position >> _HALF, zero, zero])
    words = philox4x32(counters, np.stack([seed & _LOW, seed >> _HALF]))
    bits = ((words[0] >> np.uint64(5)) << np.uint64(26)) | (words[1] >> np.uint64(6))
    return bits.astype(np.float64) * 2.0**-53
