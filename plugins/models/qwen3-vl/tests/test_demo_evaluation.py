"""``pymllm eval`` on the demo's questions gives the answers that transformers gives."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from pymllm.cli import main
from pymllm_model_qwen3_vl.demo.held_out import held_out
from qwen3_vl import Transformers

COUNT = 18


def test_answers_are_those_of_transformers(
    tiny: Path, transformers64: Transformers, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "answers.jsonl"
    words = [f"model.path={tiny}", "engine.max_total_tokens=4096", "--questions", str(COUNT), "--batch-size", "7"]
    assert main(["eval", *words, "--max-tokens", "8", "--output", str(output), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["questions"] == COUNT
    assert printed["accuracy"] == 0  # random weights
    assert set(printed["by_kind"]) == {"colour", "shape", "count", "position", "size", "comparison"}
    tokenizer: Any = transformers64.processor.tokenizer
    found = [json.loads(line) for line in output.read_text().splitlines()]
    for question, line in zip(islice(held_out(), COUNT), found, strict=True):
        content = [{"type": "image"}, {"type": "text", "text": question.text}]
        prompt = tokenizer.apply_chat_template(
            [{"role": "user", "content": content}], tokenize=False, add_generation_prompt=True
        )
        answer = transformers64.answer(prompt, [question.images[0]], 8)
        assert line["answer"] == tokenizer.decode(answer, skip_special_tokens=True)
        assert (line["kind"], line["text"], line["expected"]) == (question.kind, question.text, question.answer)
