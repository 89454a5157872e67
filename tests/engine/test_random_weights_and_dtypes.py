"""An engine needs no weights for a benchmark, and runs in 16 bits."""

from __future__ import annotations

import shutil

import pytest
import torch

from engines import answers, greedy, run, start, tokens
from pymllm.errors import CapacityError, CheckpointError, ConfigError
from pymllm.testing.tiny import make_tiny_checkpoint

COUNT = 10


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
def test_random_weights_need_config_json_alone(architecture, prompts, tmp_path) -> None:
    whole = make_tiny_checkpoint(tmp_path / "whole", architecture, initializer_range=0.2)
    bare = tmp_path / "bare"
    bare.mkdir()
    shutil.copy(whole / "config.json", bare)
    found = []
    for _ in range(2):
        client = start(bare, {"model.load_format": "random"})
        try:
            found.append(answers(client, prompts, COUNT))
        finally:
            client.close()
    assert found[0] == found[1]  # two starts have the same weights
    assert all(len(answer) == COUNT for answer in found[0])
    assert len({tuple(answer) for answer in found[0]}) > len(prompts) // 2  # and the prompts matter
    with pytest.raises(CheckpointError, match=r"set model\.load_format to random"):
        start(bare)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("cache", ["radix", "chunk"])
def test_sixteen_bits(tiny_llama, prompts, dtype: str, cache: str) -> None:
    found = []
    for _ in range(2):
        client = start(tiny_llama, {"model.dtype": dtype, "cache.plugin": cache})
        try:
            assert client.info.dtype == dtype
            outputs = run(client, prompts, greedy(COUNT, logprobs=1))
            assert all(len(answer) == COUNT for answer in tokens(outputs))
            values = torch.tensor([output.logprobs[0].logprob for one in outputs for output in one])
            assert torch.isfinite(values).all()
            client.reset_cache()
            found.append(
                [answers(client, [prompt], COUNT) for prompt in prompts]
            )  # in steps that are the same each time
            assert client.stats().pages_used == 0
        finally:
            client.close()
    assert found[0] == found[1]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_sixteen_bits_take_half_the_memory(tiny_llama, dtype: str) -> None:
    sizes = []
    for wanted in ("float32", dtype):
        client = start(tiny_llama, {"model.dtype": wanted})
        sizes.append((client.info.weight_bytes, client.info.page_bytes))
        client.close()
    # 3 layers x 16 tokens x 2 heads x 16 numbers, keys and values, 4 bytes each
    assert sizes[0][1] == 3 * 16 * 2 * 16 * 2 * 4
    assert sizes[1][1] == sizes[0][1] // 2
    assert 0.5 <= sizes[1][0] / sizes[0][0] < 0.7  # rotary tables stay float32


@pytest.mark.parametrize(
    "overrides, error, message",
    [
        ({"model.max_context": 2000}, ConfigError, r"model\.max_context is 2000, but .* was made for 1024 tokens"),
        ({"engine.device": "cuda:99"}, ConfigError, r"engine\.device is 'cuda:99', but"),
        ({"engine.memory_fraction": 1e-9}, CapacityError, r"set engine\.memory_fraction to at least 0\.\d\d$"),
        ({"engine.max_total_tokens": 15}, CapacityError, "set it to at least"),
    ],
    ids=["long context", "no such device", "little memory", "less than a page"],
)
def test_what_cannot_start_says_what_to_change(tiny_llama, overrides, error, message) -> None:
    with pytest.raises(error, match=message):
        start(tiny_llama, overrides)
