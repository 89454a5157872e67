"""The demo model in 4 bits, calibrated on pictures by ``pymllm quantize``, still sees."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from pymllm.cli import main

pytest.importorskip("llmcompressor")

CONFIG = Path(__file__).parents[4] / "configs" / "quickstart-vision.yaml"


def test_four_bits_with_pictures_and_a_recipe(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    calib, out, recipe = tmp_path / "calib", tmp_path / "out", tmp_path / "recipe.yaml"
    recipe.write_text('"re:model.visual.blocks.*": {bits: 4, group_size: 64}\n')
    words = ["-m", "pymllm_model_qwen3_vl.demo", str(calib), "--count", "4", "--others"]
    subprocess.run([sys.executable, *words], check=True, capture_output=True, timeout=120)
    options = ["--calib", str(calib / "questions.jsonl"), "--recipe", str(recipe), "--output", str(out), "--no-eval"]
    words = ["-m", "pymllm", "quantize", str(CONFIG), "--scheme", "w4a16-asym", *options]
    done = subprocess.run([sys.executable, *words], check=False, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    config = json.loads((out / "config.json").read_text())["quantization_config"]
    assert (config["format"], len(config["config_groups"])) == ("pack-quantized", 2)
    assert not any(name in entry for entry in config["ignore"] for name in ("self_attn", "blocks", "mlp.gate"))
    words = [f"model.path={out}", "engine.max_total_tokens=8192", "--questions", "60", "--json"]
    assert main(["eval", *words]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["engine"]["plugins"]["quant"].startswith("w4a16")
    assert found["accuracy"] >= 0.9
