"""``pymllm doctor`` reports the machine, and for each plugin whether it can run here or why not."""

from __future__ import annotations

import json
import os
import platform
from pathlib import Path
from typing import Any

import pytest
import torch

from sites import EXAMPLES, Site, run_pymllm


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    site = Site(tmp_path_factory.mktemp("site"))
    for name in EXAMPLES:
        site.add_example(name)
    done = run_pymllm("doctor", "--json", sites=(site.path,))
    assert done.returncode == 0
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_the_machine(report: dict[str, Any]) -> None:
    machine = report["machine"]
    assert machine["python"].startswith(platform.python_version())
    assert machine["libraries"]["torch"] == torch.__version__
    assert len(machine["cuda"]["devices"]) == torch.cuda.device_count()
    assert machine["memory"]["total"] == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if Path("/proc/cpuinfo").exists():
        flags = Path("/proc/cpuinfo").read_text()
        assert ("avx512_bf16" in machine["cpu"]["flags"]) == ("avx512_bf16" in flags)


def test_ours_can_run(report: dict[str, Any]) -> None:
    verdicts = {plugin["distribution"]: plugin for plugin in report["plugins"]}
    for name in ("model-llama", "model-qwen3", "attention-torch", "cache-radix", "cache-chunk"):
        assert verdicts[f"pymllm-{name}"]["usable"], verdicts[f"pymllm-{name}"]["note"]
    assert verdicts["pymllm-attention-torch"]["note"].startswith("on cpu")
    assert verdicts["pymllm-attention-torch"]["note"].endswith("; attention.kv_dtype: auto, bf16, fp8, int4, int8")


def test_the_broken_ones_cannot_and_it_says_why(report: dict[str, Any]) -> None:
    verdicts = {plugin["distribution"]: plugin for plugin in report["plugins"]}
    assert not any(verdicts[name]["usable"] for name in EXAMPLES)
    assert "flux capacitor" in verdicts["pymllm-cache-explodes"]["note"]
    assert "has no attribute 'Backend'" in verdicts["pymllm-attention-heavy-fails"]["note"]
    assert "pip install" in verdicts["pymllm-quant-lonely"]["note"]


def test_the_text_is_for_people() -> None:
    done = run_pymllm("doctor")
    assert done.returncode == 0
    assert "\x1b" not in done.stdout
    assert f"torch              {torch.__version__}" in done.stdout
    assert "can run: " in done.stdout
