"""Transformers' Qwen3-VL as the reference, and tiny checkpoints."""

from __future__ import annotations

from pathlib import Path

import pytest

from pymllm.testing import make_tiny_vision_checkpoint
from qwen3_vl import Transformers


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny checkpoint with vision heads of 64 and an untied head."""
    return make_tiny_vision_checkpoint(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def tiny72(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One with vision heads of 72, three levels and a tied head."""
    vision = {"hidden_size": 144, "deepstack_visual_indexes": [1, 2, 3], "num_position_embeddings": 49}
    return make_tiny_vision_checkpoint(tmp_path_factory.mktemp("tiny72"), vision=vision, tied=True, seed=1)


@pytest.fixture(scope="session")
def transformers64(tiny: Path) -> Transformers:
    return Transformers(tiny)


@pytest.fixture(scope="session")
def transformers72(tiny72: Path) -> Transformers:
    return Transformers(tiny72)
