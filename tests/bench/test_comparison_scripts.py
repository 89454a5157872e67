"""The scripts in benchmarks/ run, and compare like with like: in float32 both sides give the same tokens."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

SCRIPTS = Path(__file__).parents[2] / "benchmarks"


def run(script: str, checkpoint: Path, file: Path, *options: str) -> list[dict[str, Any]]:
    command = [sys.executable, str(SCRIPTS / script), str(checkpoint), *options, "--result-filename", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_transformers_gives_the_same_tokens(checkpoint: Path, tmp_path: Path) -> None:
    options = ["--one", "9", "--several", "5", "20", "13", "--new-tokens", "8", "--rounds", "3"]
    one, several = run("compare_transformers.py", checkpoint, tmp_path / "r.jsonl", *options)
    assert (one["equal_answers"], one["equal_until"]) == (1, 1.0)
    assert (several["equal_answers"], several["equal_until"]) == (3, 1.0)
    for figures in (one, several):
        seconds = figures["seconds"]
        assert len(seconds["pymllm"]["values"]) == len(seconds["transformers"]["values"]) == 3
        assert figures["ratio"] == seconds["transformers"]["median"] / seconds["pymllm"]["median"]


def test_only_radix_takes_the_prefix_from_the_cache(checkpoint: Path, tmp_path: Path) -> None:
    options = ["--requests", "4", "--prefix", "64", "--tail", "5", "--new-tokens", "4", "--rounds", "3"]
    (figures,) = run("shared_prefix.py", checkpoint, tmp_path / "r.jsonl", *options)
    assert figures["cached_tokens"] == {"chunk": 0, "radix": 3 * 64}  # all but the first, which computes it
    assert figures["equal_answers"] == 4
    assert figures["ratio"] == figures["seconds"]["chunk"]["median"] / figures["seconds"]["radix"]["median"]
