"""The vision tower's features, of every level, are transformers'."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from pymllm.interfaces import MediaItem
from pymllm.testing.harness import attention_plugin, load_model
from pymllm.testing.model import FLOAT32_BOUND, difference
from pymllm_model_qwen3_vl.model import Qwen3VLModel

GRIDS = [(1, 4, 4), (1, 2, 10), (2, 6, 4), (1, 14, 12), (3, 2, 2)]
"""Smaller and larger than the position table, square and not, images and videos."""


def items(grids: list[tuple[int, int, int]]) -> list[MediaItem]:
    generator = torch.Generator().manual_seed(3)
    found = []
    for t, h, w in grids:
        shape = (1 if t == 1 else 2 * t, 16 * h, 16 * w, 3)
        pixels = torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)
        found.append(MediaItem("image" if t == 1 else "video", pixels, (t, h, w)))
    return found


def pixel_values(item: MediaItem) -> torch.Tensor:
    """Patches as transformers takes them: by rows of 2 x 2 blocks; channel, frame, row, column."""
    (t, h, w), frames = item.grid, item.pixels.numpy()
    frames = frames.repeat(2, axis=0) if len(frames) == 1 else frames
    blocks = frames.reshape(t, 2, h // 2, 2, 16, w // 2, 2, 16, 3).transpose(0, 2, 5, 3, 6, 8, 1, 4, 7)
    return torch.from_numpy(blocks.reshape(t * h * w, -1) / 127.5 - 1).float()


@pytest.mark.parametrize("size", [64, 72])
@pytest.mark.parametrize("grids", [GRIDS, GRIDS[3:4], GRIDS[2:3]], ids=["all at once", "an image", "a video"])
@torch.inference_mode()
def test_every_level_equals_transformers(request: pytest.FixtureRequest, size: int, grids: Any) -> None:
    folder: Path = request.getfixturevalue("tiny" if size == 64 else "tiny72")
    reference: Any = request.getfixturevalue(f"transformers{size}").model.model.visual
    model = load_model(folder, Qwen3VLModel, make_attention=attention_plugin("torch")).model
    media = items(grids)
    values = torch.cat([pixel_values(item) for item in media])
    expected = reference(values, grid_thw=torch.tensor(grids), return_dict=True)
    levels = [expected.pooler_output, *expected.deepstack_features]
    found = torch.cat(model.encode_media(media)).split(levels[0].shape[1], dim=1)
    assert len(found) == len(levels) == (3 if size == 64 else 4)
    for own, level in zip(found, levels):
        assert difference(own, level) <= FLOAT32_BOUND


@torch.inference_mode()
def test_a_size_seen_before_gives_the_same(tiny: Path) -> None:
    model = load_model(tiny, Qwen3VLModel).model
    media = items(GRIDS)
    first = model.encode_media(media)
    assert all(torch.equal(a, b) for a, b in zip(first, model.encode_media(media)))


@torch.inference_mode()
def test_geometry_is_kept_within_a_limit(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pymllm_model_qwen3_vl.geometry.KEPT_PATCHES", 40)
    model: Any = load_model(tiny, Qwen3VLModel).model
    for grid in ((1, 4, 4), (1, 2, 10), (1, 4, 4), (1, 2, 2), (1, 14, 12)):
        model.encode_media(items([grid]))
    assert list(model.vision._geometries._kept) == []
    for grid in ((1, 4, 4), (1, 2, 10), (1, 4, 4), (1, 2, 2)):
        model.encode_media(items([grid]))
    assert list(model.vision._geometries._kept) == [(2, 10), (4, 4), (2, 2)]
