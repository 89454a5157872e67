"""The generator is Philox4x32-10, keyed by seed and counted by position."""

from __future__ import annotations

import numpy as np
import pytest

from pymllm.engine.philox import philox4x32, uniforms

# Random123's published known-answer vectors (tests/kat_vectors, "philox4x32 10"): counter, key, result.
KNOWN_ANSWERS = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]


def words(text: str) -> list[int]:
    return [int(word, 16) for word in text.split()]


def scalar_philox(counter: list[int], key: list[int]) -> list[int]:
    """The round function as the paper's figure states it, on Python integers."""
    for _ in range(10):
        first, second = 0xD2511F53 * counter[0], 0xCD9E8D57 * counter[2]
        counter = [
            (second >> 32) ^ counter[1] ^ key[0],
            second & 0xFFFFFFFF,
            (first >> 32) ^ counter[3] ^ key[1],
            first & 0xFFFFFFFF,
        ]
        key = [(key[0] + 0x9E3779B9) & 0xFFFFFFFF, (key[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return counter


def test_known_answers_in_one_call():
    counters = np.array([words(c) for c, _, _ in KNOWN_ANSWERS], dtype=np.uint64).T
    keys = np.array([words(k) for _, k, _ in KNOWN_ANSWERS], dtype=np.uint64).T
    assert philox4x32(counters, keys).T.tolist() == [words(r) for _, _, r in KNOWN_ANSWERS]


@pytest.mark.parametrize("seed", [0, 1, 2**32, 2**64 - 1, -1, -(2**63), 2**70 + 5, 0x0123456789ABCDEF])
def test_number_is_53_bits_of_the_block_at_seed_and_position(seed: int):
    positions = [0, 1, 2, 1000, 2**32 - 1, 2**32, 2**40 + 3]
    got = uniforms([seed] * len(positions), positions)
    for number, position in zip(got.tolist(), positions):
        key = [seed % 2**32, (seed >> 32) % 2**32]
        block = scalar_philox([position % 2**32, position >> 32, 0, 0], key)
        assert number == ((block[0] >> 5) * 2**26 + (block[1] >> 6)) / 2**53


def test_numbers_lie_in_the_unit_interval_and_differ():
    numbers = uniforms([7] * 50_000, range(50_000))
    assert numbers.min() >= 0.0
    assert numbers.max() < 1.0
    assert len(np.unique(numbers)) == len(numbers)
    assert abs(numbers.mean() - 0.5) < 5 / np.sqrt(12 * len(numbers))
