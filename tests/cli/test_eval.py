"""``pymllm eval`` counts right answers by kind; what it cannot ask is one line."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from pymllm.cli import main
from pymllm.testing import make_tiny_checkpoint
from sites import Site, importable

HEAD = """
from pymllm.plugin import ModelSpec, hookimpl

@hookimpl
def pymllm_model():
    return ModelSpec(
        factory="pymllm_model_llama.model:LlamaModel", architectures=("Other",), evaluation="exam:questions"
    )
"""

EXAM = """
import json
from pathlib import Path
from pymllm.interfaces import Question

def questions():
    for kind, text, answer in json.loads(Path(__file__).with_name("exam.json").read_text()):
        yield Question(kind, text, answer)
"""

PICTURES = """
import numpy as np
from pymllm.interfaces import Question

def questions():
    return [Question("colour", "Which?", "red", (np.zeros((8, 8, 3), np.uint8),))]
"""

MODEL = ("model.plugin=examined", "engine.max_total_tokens=4096")

Evaluate = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_checkpoint(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """A model plugin whose evaluation set is the module ``exam``."""
    with importable(tmp_path / "site") as site:
        site.add_plugin("model.examined", "examined", HEAD)
        (site.path / "exam.py").write_text(EXAM)
        yield site


@pytest.fixture
def evaluate(tiny: Path, capsys: pytest.CaptureFixture[str]) -> Evaluate:
    """Runs the command in this process, engine included: status, standard output, standard error."""

    def call(*words: str) -> tuple[int, str, str]:
        status = main(["eval", f"model.path={tiny}", "engine.process=false", *words])
        return (status, *capsys.readouterr())

    return call


def answers(folder: Path, texts: list[str]) -> list[str]:
    """Transformers' greedy answers of 16 tokens."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    found = []
    for text in texts:
        prompt = tokenizer.apply_chat_template(
            [{"role": "user", "content": text}], add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        tokens = model.generate(**prompt, max_new_tokens=16, do_sample=False)[0, prompt["input_ids"].shape[1] :]
        found.append(tokenizer.decode(tokens, skip_special_tokens=True).strip())
    return found


@pytest.fixture
def exam(tiny: Path, site: Site) -> None:
    """Five questions, of which the model answers three rightly: one of two, and two of three."""
    texts = ["One?", "Two?", "Three?", "Four?", "Five?"]
    expected = answers(tiny, texts)
    asked = [
        (kind, text, answer if right else f"not {answer}")
        for kind, text, answer, right in zip("aabbb", texts, expected, (True, False, True, True, False))
    ]
    (site.path / "exam.json").write_text(json.dumps(asked))


@pytest.mark.usefixtures("exam")
def test_it_counts_right_answers_by_kind(tiny: Path, evaluate: Evaluate) -> None:
    status, out, err = evaluate(*MODEL, "--json", "--batch-size", "2")
    assert status == 0, err
    result = json.loads(out)
    assert result["accuracy"] == 3 / 5
    assert result["by_kind"] == {"a": 1 / 2, "b": 2 / 3}
    assert result["questions"] == 5
    assert result["questions_by_kind"] == {"a": 2, "b": 3}
    assert result["model"] == str(tiny)
    assert result["seconds"] > 0
    assert {"pymllm", "torch"} <= set(result["versions"])
    shown = evaluate(*MODEL, "--questions", "2")[1].splitlines()
    assert [line.split() for line in shown[-3:]] == [
        ["KIND", "QUESTIONS", "ACCURACY"],
        ["a", "2", "50.00", "%"],
        ["all", "2", "50.00", "%"],
    ]


def error(done: tuple[int, str, str]) -> str:
    status, out, err = done
    assert (status, out) == (2, "")
    lines = [line for line in err.splitlines() if " pymllm info: " not in line]
    assert len(lines) == 1, err
    return str(lines[0])


def test_a_model_whose_plugin_has_no_questions_is_one_line(evaluate: Evaluate) -> None:
    assert error(evaluate()) == (
        "pymllm: model plugin 'llama' has no evaluation set: give a model whose plugin has one"
    )


def test_a_model_that_takes_no_images_is_one_line(tiny: Path, site: Site, evaluate: Evaluate) -> None:
    (site.path / "exam.py").write_text(PICTURES)
    line = error(evaluate(*MODEL))
    assert line == f"pymllm: {tiny} takes no images, which the questions of its plugin show"


def test_a_module_that_is_missing_is_blamed_on_its_plugin(site: Site, evaluate: Evaluate) -> None:
    (site.path / "exam.py").unlink()
    line = error(evaluate(*MODEL))
    assert "model plugin 'examined' (examined 0.1.0)" in line
    assert "exam" in line


def test_an_empty_set_is_one_line(site: Site, evaluate: Evaluate) -> None:
    (site.path / "exam.json").write_text("[]")
    line = error(evaluate(*MODEL))
    assert line == "pymllm: the evaluation set is empty"
