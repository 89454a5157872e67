"""load_weights fills every binding, and says exactly what does not fit before it reads a weight."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from pymllm.checkpoint import load_weights, open_checkpoint
from pymllm.checkpoint.base import Checkpoint
from pymllm.config import ModelConfig
from pymllm.errors import CheckpointError
from pymllm.interfaces.weights import WeightMap


def checkpoint_of(folder: Path, tensors: dict[str, Tensor]) -> Checkpoint:
    (folder / "config.json").write_text(json.dumps({}))
    save_file(tensors, folder / "model.safetensors")
    return open_checkpoint(ModelConfig(path=str(folder)))


def test_tensors_reach_their_rows_of_a_fused_parameter(tmp_path: Path) -> None:
    q, k = torch.randn(4, 3, dtype=torch.bfloat16), torch.randn(2, 3, dtype=torch.bfloat16)
    fused = torch.nn.Parameter(torch.full((6, 3), torch.nan))
    weights = WeightMap()
    weights.bind("q.weight", fused[:4])
    weights.bind("k.weight", fused[4:])
    load_weights(checkpoint_of(tmp_path, {"k.weight": k, "q.weight": q}), weights, progress=False)
    assert torch.equal(fused.detach(), torch.cat([q, k]).float())


def test_ignored_tensors_are_neither_unknown_nor_loaded(tmp_path: Path) -> None:
    target = torch.zeros(2)
    weights = WeightMap()
    weights.bind("a.weight", target)
    weights.ignore(r"lm_head\..*")
    load_weights(
        checkpoint_of(tmp_path, {"a.weight": torch.ones(2), "lm_head.weight": torch.ones(3)}), weights, progress=False
    )
    assert target.tolist() == [1.0, 1.0]


def test_unknown_missing_and_misshapen_tensors_are_listed_together(tmp_path: Path) -> None:
    target = torch.zeros(2, 3)
    weights = WeightMap()
    weights.bind("here.weight", target)
    weights.bind("absent.weight", torch.zeros(1))
    weights.bind("turned.weight", torch.zeros(3, 2))
    checkpoint = checkpoint_of(
        tmp_path,
        {"here.weight": torch.ones(2, 3), "turned.weight": torch.ones(2, 3), "extra.weight": torch.ones(1)},
    )
    with pytest.raises(CheckpointError) as caught:
        load_weights(checkpoint, weights, progress=False)
    message = str(caught.value)
    assert "1 of its tensors unknown to the model: extra.weight" in message
    assert "1 tensors missing: absent.weight" in message
    assert "1 tensors of another shape: turned.weight ([2, 3], the model has [3, 2])" in message
    assert "\n" not in message
    assert not target.any()


def test_long_lists_are_cut_with_a_count(tmp_path: Path) -> None:
    checkpoint = checkpoint_of(tmp_path, {f"layer.{i:02}.weight": torch.ones(1) for i in range(25)})
    with pytest.raises(CheckpointError, match=r"25 of its tensors.*layer\.09\.weight and 15 more") as caught:
        load_weights(checkpoint, WeightMap(), progress=False)
    assert "layer.10.weight" not in str(caught.value)


def test_progress_goes_to_standard_error(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    checkpoint = checkpoint_of(tmp_path, {"a.weight": torch.ones(2)})
    for progress in (True, False):
        weights = WeightMap()
        weights.bind("a.weight", torch.zeros(2))
        load_weights(checkpoint, weights, progress=progress)
        out, err = capfd.readouterr()
        assert out == ""
        assert ("100%" in err) is progress
