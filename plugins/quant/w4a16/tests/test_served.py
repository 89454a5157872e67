"""Whole engines with 4-bit weights: chosen by the checkpoint or by name, right with every cache and chunked prefill."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pymllm import LLM, SamplingParams
from pymllm.errors import PluginError
from pymllm.testing import make_tiny_checkpoint

GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
PROMPTS = [{"prompt_token_ids": list(range(start, start + length))} for start, length in [(5, 40), (5, 23), (90, 3)]]
SETTINGS = {"engine.max_total_tokens": 4096, "model.dtype": "float32"}


def answers(folder: Path, settings: dict[str, Any], prompts: list[dict[str, list[int]]] = PROMPTS) -> list[list[int]]:
    """Greedy, by an engine whose quantization plugin is w4a16."""
    with LLM(folder, {**SETTINGS, **settings}, progress=False) as llm:
        assert [choice.name for choice in llm.info.choices if choice.kind == "quant"] == ["w4a16"]
        return [list(output.outputs[0].token_ids) for output in llm.generate(prompts, GREEDY)]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_checkpoint(tmp_path_factory.mktemp("plain") / "qwen3", "qwen3")


def test_online_answers_do_not_depend_on_cache_and_chunks(checkpoint: Path) -> None:
    online = {"quant.plugin": "w4a16", "quant.online": True, "quant.group_size": 32}
    found = [
        answers(checkpoint, {**online, "cache.plugin": cache, "engine.max_batch_tokens": chunk})
        for cache, chunk in [("radix", 512), ("radix", 16), ("chunk", 512)]
    ]
    assert found[0] == found[1] == found[2]
    assert len({tuple(answer) for answer in found[0]}) == len(PROMPTS)


@pytest.mark.parametrize(
    "config",
    [
        {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm", "zero_point": True},
        {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False},
        {
            "quant_method": "compressed-tensors",
            "format": "pack-quantized",
            "config_groups": {"0": {"targets": ["Linear"], "weights": {"num_bits": 4, "group_size": 32}}},
            "ignore": ["lm_head"],
        },
    ],
    ids=lambda config: config["quant_method"],
)
def test_the_checkpoint_selects_it(checkpoint: Path, config: dict[str, Any], tmp_path: Path) -> None:
    """With random weights, which need config.json alone."""
    whole = json.loads((checkpoint / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**whole, "quantization_config": config}))
    for file in checkpoint.glob("tokenizer*"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    assert all(len(answer) == 12 for answer in answers(tmp_path, {"model.load_format": "random"}))


def test_a_full_precision_checkpoint_is_not_quantized_unasked(checkpoint: Path) -> None:
    with pytest.raises(PluginError, match=r"set quant\.online to true"), LLM(checkpoint, {"quant.plugin": "w4a16"}):
        pass


@pytest.mark.gpu
def test_graphs_change_no_answer(checkpoint: Path) -> None:
    """One request at a time, so that steps have the same number of rows, and with it the same kernels."""
    online = {"quant.plugin": "w4a16", "quant.online": True, "quant.group_size": 32, "model.dtype": "bfloat16"}
    found = [answers(checkpoint, {**online, "engine.cuda_graphs": graphs}, PROMPTS[:1]) for graphs in (True, False)]
    assert found[0] == found[1]
