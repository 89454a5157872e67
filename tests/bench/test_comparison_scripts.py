"""The scripts in benchmarks/ run, and compare like with like: in float32 both sides give the same tokens."""

from __future__ import annotations

import json
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pymllm.checkpoint import open_checkpoint
from pymllm.config import LoadFormat, ModelConfig
from pymllm.frontend.detokenizer import Detokenizer
from pymllm.frontend.tokenizer import load_tokenizer

SCRIPTS = Path(__file__).parents[2] / "benchmarks"


Run = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Runs a script in this process, with words as its command line."""
    monkeypatch.syspath_prepend(str(SCRIPTS))

    def call(name: str, *words: str) -> None:
        monkeypatch.setattr("sys.argv", [name, *words])
        runpy.run_path(str(SCRIPTS / name), run_name="__main__")

    return call


@pytest.fixture
def run(script: Callable[..., None], tmp_path: Path) -> Run:
    """Runs a script; the lines that it kept."""

    def call(name: str, *words: str) -> list[dict[str, Any]]:
        file = tmp_path / "r.jsonl"
        script(name, *words, "--result-filename", str(file))
        return [json.loads(line) for line in file.read_text().splitlines()]

    return call


def test_transformers_gives_the_same_tokens(checkpoint: Path, run: Run) -> None:
    options = ["--one", "9", "--several", "5", "20", "13", "--new-tokens", "8", "--rounds", "3"]
    one, several = run("compare_transformers.py", str(checkpoint), *options)
    assert (one["equal_answers"], one["equal_until"]) == (1, 1.0)
    assert (several["equal_answers"], several["equal_until"]) == (3, 1.0)
    for figures in (one, several):
        seconds = figures["seconds"]
        assert len(seconds["pymllm"]["values"]) == len(seconds["transformers"]["values"]) == 3
        assert figures["ratio"] == seconds["transformers"]["median"] / seconds["pymllm"]["median"]


def test_only_radix_takes_the_prefix_from_the_cache(checkpoint: Path, run: Run) -> None:
    options = ["--requests", "4", "--prefix", "64", "--tail", "5", "--new-tokens", "4", "--rounds", "3"]
    (figures,) = run("shared_prefix.py", str(checkpoint), *options)
    assert figures["cached_tokens"] == {"chunk": 0, "radix": 3 * 64}  # all but the first, which computes it
    assert figures["equal_answers"] == 4
    assert figures["ratio"] == figures["seconds"]["chunk"]["median"] / figures["seconds"]["radix"]["median"]


def test_pages_and_decodes_of_each_kind_of_cache(checkpoint: Path, run: Run) -> None:
    options = [f"model.path={checkpoint}", "attention.plugin=torch", "model.dtype=float32", "engine.device=cpu"]
    options += ["engine.max_total_tokens=1024", "--batch", "2", "--context", "33", "--new-tokens", "4"]
    wide, narrow = run("kv_bound_load.py", "4b", *options, "--kinds", "auto", "int4")
    assert [found["kv_dtype"] for found in (wide, narrow)] == ["auto", "int4"]
    assert [found["pages"] for found in (wide, narrow)] == [64, 64]  # as many as were asked for
    assert wide["speed"] == wide["more_pages"] == 1.0
    assert narrow["speed"] == narrow["tokens_s"] / wide["tokens_s"]
    assert narrow["tokens_s"] == pytest.approx(2 / narrow["step_ms"] * 1e3)


def test_serving_goes_through_every_part_but_the_device(run: Run) -> None:
    few, more = run("serving_overhead.py", "--streams", "3", "5", "--tokens", "20", "--step-ms", "2")
    assert [few["streams"], more["streams"]] == [3, 5]
    for found in (few, more):
        assert 1 <= found["tokens_chunk"] <= 20
        # Each stream has a step a token at least, and the first one of its prompt.
        assert 0 < found["device_busy_share"] <= 1
        assert found["api_us_token"] > 0


def test_every_token_of_a_random_qwen3_has_text(tmp_path: Path, script: Callable[..., None]) -> None:
    script("random_qwen3.py", "4b", str(tmp_path / "q"))
    config = ModelConfig(path=str(tmp_path / "q"), load_format=LoadFormat.random)
    checkpoint = open_checkpoint(config)
    assert (checkpoint.config["hidden_size"], checkpoint.config["vocab_size"]) == (2560, 151936)
    tokenizer = load_tokenizer(checkpoint, config)
    assert tokenizer is not None
    stream = Detokenizer(tokenizer).stream()
    texts = [stream.feed(token) for token in range(256, 151936)]
    assert texts[:2] == [" aaaa", " aaab"]
    assert len(set(texts)) == len(texts)
