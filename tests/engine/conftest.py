from __future__ import annotations

import random

import pytest

from pymllm.testing.tiny import make_tiny_checkpoint


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory):
    return make_tiny_checkpoint(tmp_path_factory.mktemp("llama"), "llama")


@pytest.fixture(scope="session")
def prompts() -> list[list[int]]:
    """Random prompts, of which some share prefixes of up to 60 tokens."""
    rng = random.Random(7)
    shared = [rng.randrange(250) for _ in range(60)]
    lengths = (1, 2, 15, 16, 17, 33, 64, 90)
    alone = [[rng.randrange(250) for _ in range(n)] for n in lengths]
    return alone + [shared[:cut] + [rng.randrange(250) for _ in range(9)] for cut in (20, 32, 48, 60)]
