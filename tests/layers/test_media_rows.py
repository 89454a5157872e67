"""Features stand for the embeddings of their rows, and further levels are added after the first layers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pymllm.interfaces import MediaRows
from pymllm.layers import DecoderConfig, DenseModel
from pymllm.testing import make_tiny_checkpoint
from pymllm.testing.batch import Chunk
from pymllm.testing.harness import Harness, load_model

WIDTH = 64


class Identity(nn.Module):
    """An attention block that adds nothing."""

    def forward(self, h: Tensor, norm: Any, positions: Tensor) -> Tensor:
        return h


class Stateless(DenseModel):
    """A decoder whose tokens do not see one another."""

    def __init__(self, config: Any, context: Any, media_levels: int = 0) -> None:
        context.weights.ignore(r".*\.self_attn\..*")
        sizes = DecoderConfig.read(config)
        super().__init__(sizes, config, context, lambda context, rope: Identity(), media_levels=media_levels)


class OneLevel(Stateless):
    def __init__(self, config: Any, context: Any) -> None:
        super().__init__(config, context, media_levels=1)


class ThreeLevels(Stateless):
    def __init__(self, config: Any, context: Any) -> None:
        super().__init__(config, context, media_levels=3)


def load(folder: Path, model: type[Stateless]) -> Harness:
    return load_model(make_tiny_checkpoint(folder / "llama", "llama"), model)


def run(harness: Harness, media: MediaRows | None) -> Tensor:
    return harness.run(Chunk([3, 4, 5, 6], harness.page_list(4), media=media))[0]


def test_features_stand_for_embeddings(tmp_path: Path) -> None:
    harness = load(tmp_path, OneLevel)
    table: Any = harness.model.get_parameter("decoder.embedding.weight")
    features = table[[40, 41]].clone()
    found = run(harness, MediaRows(torch.tensor([2, 0]), features))
    expected = harness.run(Chunk([41, 4, 40, 6], harness.page_list(4)))[0]
    assert torch.equal(found, expected)


def test_levels_are_added_after_the_first_layers(tmp_path: Path) -> None:
    """Against the layers called one by one."""
    harness = load(tmp_path, ThreeLevels)
    decoder: Any = harness.model.get_submodule("decoder")
    rows, levels = torch.tensor([1, 3]), torch.randn(3, 2, WIDTH)
    found = run(harness, MediaRows(rows, torch.cat(list(levels), dim=1)))
    with torch.inference_mode():
        h = decoder.embedding(torch.tensor([3, 4, 5, 6]))
        h[rows] = levels[0]
        for index, layer in enumerate(decoder.layers):
            h = layer(h.clone(), torch.arange(4))
            if index < 2:
                h[rows] += levels[index + 1]
        expected = harness.model.logits(decoder.norm(h))
    torch.testing.assert_close(found, expected)


def test_a_model_without_media_says_so(tmp_path: Path) -> None:
    harness = load(tmp_path, Stateless)
    assert (harness.model.media_width, harness.model.position_axes) == (0, 1)
    with pytest.raises(NotImplementedError, match="Stateless takes no images"):
        harness.model.encode_media([])
