"""The plugin serves whole models: chosen by the checkpoint, or asked for in the configuration."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import engines
from pymllm.errors import PluginError
from pymllm.interfaces import QuantContext
from pymllm.testing import make_tiny_checkpoint
from pymllm.testing.harness import load_model
from pymllm_model_llama.model import LlamaModel
from pymllm_quant_w8a8_cutlass.method import W8A8Method
from pymllm_quant_w8a8_cutlass.plugin import W8A8Options

PROMPT = [17, 250, 3, 99, 180, 42, 7, 7, 201, 64]


def test_the_checkpoints_format_chooses_it(compressed: Callable[..., Path]) -> None:
    folder = compressed()
    config = json.loads((folder / "config.json").read_text())["quantization_config"]
    method = W8A8Method(W8A8Options(), QuantContext(torch.device("cpu"), torch.float32, config))
    expected = load_model(folder, LlamaModel, quant=method).greedy(PROMPT, 12)
    client = engines.start(folder)
    try:
        chosen = {choice.kind: choice for choice in client.info.choices}["quant"]
        assert (chosen.name, chosen.distribution) == ("w8a8-cutlass", "pymllm-quant-w8a8-cutlass")
        assert "compressed-tensors/int-quantized" in chosen.reason
        prompts = [PROMPT, PROMPT[:3], PROMPT]
        answers = engines.tokens(engines.run(client, prompts, engines.greedy(12)))
    finally:
        client.close()
    assert answers[0] == expected
    assert answers[2] == expected


def test_a_full_precision_checkpoint_is_quantized_on_request(tmp_path: Path) -> None:
    folder = make_tiny_checkpoint(tmp_path / "llama", "llama")
    options = {"quant.plugin": "w8a8-cutlass", "quant.online": True, "quant.ignore": ["lm_head", "re:.*down_proj"]}
    asked = W8A8Options(online=True, ignore=["lm_head", "re:.*down_proj"])
    method = W8A8Method(asked, QuantContext(torch.device("cpu"), torch.float32, None))
    expected = load_model(folder, LlamaModel, quant=method).greedy(PROMPT, 12)
    client = engines.start(folder, options)
    try:
        assert engines.tokens(engines.run(client, [PROMPT], engines.greedy(12))) == [expected]
    finally:
        client.close()


def test_kernels_that_need_a_gpu_are_refused_on_a_cpu(tmp_path: Path) -> None:
    folder = make_tiny_checkpoint(tmp_path / "llama", "llama")
    options = {"quant.plugin": "w8a8-cutlass", "quant.online": True, "quant.kernels": "cutlass"}
    with pytest.raises(PluginError, match=r"quant\.kernels is cutlass, but this engine is on a CPU"):
        engines.start(folder, options)
