"""``pymllm quantize``: what it writes is loaded by compressed-tensors and transformers, and answers as they say."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from pymllm.cli import main
from pymllm.testing.tiny import make_tiny_checkpoint

pytest.importorskip("llmcompressor")


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_checkpoint(tmp_path_factory.mktemp("tiny") / "qwen3", "qwen3", hidden_size=128, head_dim=32)


def quantized(original: Path, out: Path, scheme: str, *more: str) -> Path:
    """In a process of its own: llmcompressor keeps much of what it did."""
    words = [f"model.path={original}", "--scheme", scheme, "--output", str(out), "--no-eval", *more]
    done = subprocess.run(
        [sys.executable, "-m", "pymllm", "quantize", *words], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    assert f"pymllm run model.path={out}" in done.stdout
    return out


def test_int8_weights_are_rounded_to_the_nearest(original: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file

    out = quantized(original, tmp_path / "out", "w8a8-rtn")
    before, after = load_file(original / "model.safetensors"), load_file(out / "model.safetensors")
    name = "model.layers.0.mlp.down_proj"
    weight, codes, scale = before[f"{name}.weight"], after[f"{name}.weight"], after[f"{name}.weight_scale"]
    assert (codes.dtype, scale.dtype) == (torch.int8, torch.float32)
    # compressed-tensors divides the range of a row by 255, not by 254.
    torch.testing.assert_close(scale, 2 * weight.abs().amax(1, keepdim=True) / 255)
    assert ((codes * scale - weight).abs() <= 0.5001 * scale + (codes == 127) * scale).all()
    config = json.loads((out / "config.json").read_text())["quantization_config"]
    assert (config["format"], config["ignore"]) == ("int-quantized", ["lm_head"])
    assert (out / "tokenizer.json").read_bytes() == (original / "tokenizer.json").read_bytes()
    card = (out / "README.md").read_text()
    assert "w8a8-rtn" in card
    assert "not compared" in card


def test_a_folder_that_is_there_is_not_written_into(original: Path, tmp_path: Path, capsys) -> None:
    (tmp_path / "kept").write_text("mine")
    words = [f"model.path={original}", "--scheme", "w8a8-rtn", "--output", str(tmp_path)]
    assert main(["quantize", *words]) == 2
    assert "is there already: give a new folder" in capsys.readouterr().err
    assert (tmp_path / "kept").read_text() == "mine"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--scheme", "w8a8", "--group-size", "64"), "int8 weights have no groups"),
        (("--scheme", "w4a16-rtn", "--calib", "x.jsonl"), "reads no calibration data"),
        (("--scheme", "w4a16", "--calib", "/none.jsonl"), "cannot be read"),
        (("--scheme", "w4a16", "--recipe", "/none.yaml"), "cannot be read"),
        (("--scheme", "w4a16", "--seqlen", "999999999"), "--seqlen 999999999 is longer than what the model takes, "),
    ],
)
def test_what_has_no_effect_or_is_not_there(original: Path, tmp_path: Path, capsys, options, message: str) -> None:
    assert main(["quantize", f"model.path={original}", "--output", str(tmp_path / "out"), *options]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_w8a8_moves_part_of_a_spike_into_the_next_weight(tmp_path: Path) -> None:
    """What down_proj reads in one channel is 256 times as large: it becomes 64 times as large, of powers of 1/4."""
    from safetensors.torch import load_file, save_file

    spiky = make_tiny_checkpoint(tmp_path / "spiky", "qwen3", hidden_size=128, head_dim=32)
    before = load_file(spiky / "model.safetensors")
    before["model.layers.1.mlp.up_proj.weight"][5] *= 256
    save_file(before, spiky / "model.safetensors", {"format": "pt"})
    after = load_file(
        quantized(spiky, tmp_path / "out", "w8a8", "--samples", "2", "--seqlen", "256") / "model.safetensors"
    )

    def growth(name: str, dim: int) -> float:
        """How many times as much as others a column (dim 0) or row (dim 1) grew."""
        name = f"model.layers.1.mlp.{name}"
        made = (after[f"{name}.weight"] * after[f"{name}.weight_scale"]).norm(dim=dim)
        grown = made / before[f"{name}.weight"].norm(dim=dim)
        return float(grown[5] / grown.median())

    assert growth("down_proj", 0) == pytest.approx(4, rel=0.2)
    assert growth("up_proj", 1) < 1 / 3  # 1 / 4, times what the norm before it took of its columns
