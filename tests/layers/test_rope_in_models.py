"""Models with stretched rotary embeddings equal transformers, with config.json in the new and the old spelling."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from pymllm.testing import make_tiny_checkpoint
from pymllm.testing.harness import load_model
from pymllm.testing.tiny import Architecture
from pymllm_model_llama.model import LlamaModel
from pymllm_model_qwen3.model import Qwen3Model

FACTORIES: dict[str, Any] = {"llama": LlamaModel, "qwen2": LlamaModel, "qwen3": Qwen3Model}

ROPES: dict[str, dict[str, Any]] = {
    "theta": {"rope_type": "default", "rope_theta": 1e6},
    "linear": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0},
    "yarn": {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 64},
    "llama3": {
        "rope_type": "llama3",
        "rope_theta": 5e5,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
}


def spell_old(folder: Path) -> None:
    """Rewrite config.json as transformers 4 wrote it: rope_theta beside rope_scaling."""
    file = folder / "config.json"
    config = json.loads(file.read_text())
    parameters = config.pop("rope_parameters")
    config["rope_theta"] = parameters.pop("rope_theta")
    config["rope_scaling"] = None if parameters["rope_type"] == "default" else parameters
    file.write_text(json.dumps(config))


@pytest.mark.parametrize("spelling", ["new", "old"])
@pytest.mark.parametrize("rope", ROPES)
@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
def test_logits_equal_transformers(tmp_path: Path, architecture: Architecture, rope: str, spelling: str) -> None:
    folder = make_tiny_checkpoint(tmp_path / "model", architecture, rope_parameters=dict(ROPES[rope]))
    plain = make_tiny_checkpoint(tmp_path / "plain", architecture)
    tokens = torch.randint(288, (300,), generator=torch.Generator().manual_seed(1)).tolist()
    with torch.inference_mode():
        reference: Any = AutoModelForCausalLM.from_pretrained(folder)
        expected = reference(torch.tensor([tokens])).logits[0]
    if spelling == "old":
        spell_old(folder)
    scale = expected.abs().max()
    factory = FACTORIES[architecture]
    assert (load_model(folder, factory).logits(tokens) - expected).abs().max() <= 1e-4 * scale
    # The same weights without the scaling are far off, so the comparison proves something.
    assert (load_model(plain, factory).logits(tokens) - expected).abs().max() > 0.05 * scale
