"""Random requests: token ids and answer lengths that a seed determines."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

LAST_ID = 10_000
"""Random ids are drawn from 0 to this, both included, as far as the vocabulary goes."""


@dataclass(frozen=True)
class Lengths:
    """Token counts from ``least`` to ``most``, both included and equally likely."""

    least: int
    most: int


@dataclass(frozen=True)
class Work:
    """A prompt of token ids, and how many tokens its answer shall have."""

    prompt: list[int]
    max_tokens: int


def offline_workload(count: int, inputs: Lengths, outputs: Lengths, seed: float, vocab_size: int) -> list[Work]:
    """The requests that nano-vllm's ``bench.py`` draws from Python's generator with that seed.

    Its order: for each prompt its length, then its ids; after all prompts the lengths of the answers. 256
    requests of 100 to 1024 tokens with seed 0 ask for 133,966 tokens, as published.
    """
    rng = random.Random(seed)
    last = min(LAST_ID, vocab_size - 1)
    prompts = [random_ids(rng, rng.randint(inputs.least, inputs.most), last) for _ in range(count)]
    return [Work(prompt, rng.randint(outputs.least, outputs.most)) for prompt in prompts]


def random_ids(rng: random.Random, count: int, last: int) -> list[int]:
    """Ids from 0 to ``last``."""
    return [rng.randint(0, last) for _ in range(count)]


def unlike_prompts(
    rng: random.Random, count: int, length: int, vocab_size: int, prefix: Sequence[int] = ()
) -> list[list[int]]:
    """Prompts of ``length`` tokens that have the prefix in common and differ right behind it (as long as the
    vocabulary has enough ids), so that no prefix cache shares more than the prefix."""
    last = min(LAST_ID, vocab_size - 1)
    firsts = rng.sample(range(last + 1), count) if count <= last + 1 else random_ids(rng, count, last)
    rest = length - len(prefix) - 1
    return [[*prefix, first, *random_ids(rng, rest, last)] for first in firsts]
