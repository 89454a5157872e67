"""``bench one-batch --image``: new pictures in every prompt, of the length that was asked for."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from pymllm.bench.pictures import Pictures
from pymllm.cli import main
from pymllm.compose import compose
from pymllm.engine.assemble import assemble_parts
from pymllm.errors import ConfigError
from pymllm.testing import make_tiny_vision_checkpoint
from pymllm.testing.media_prompt import picture
from pymllm.testing.tiny import make_tiny_checkpoint

OPTIONS = [
    "model.dtype=float32", "model.max_context=256", "engine.max_total_tokens=1024", "engine.device=cpu",
    "media.max_tokens=128",
]  # fmt: skip

pytestmark = pytest.mark.usefixtures("small_ceilings")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return make_tiny_vision_checkpoint(tmp_path_factory.mktemp("vision"))


@pytest.fixture(scope="module")
def file(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("pictures") / "a.png"
    Image.fromarray(picture(1, 100, 140)).save(path)
    return path


@pytest.fixture(scope="module")
def pictures(folder: Path, file: Path) -> Pictures:
    config = compose(None, [f"model.path={folder}", *OPTIONS])
    return Pictures(config, assemble_parts(config, progress=False), [file, file], "which?")


def test_prompts_of_a_length(pictures: Pictures) -> None:
    natural = pictures.natural_length
    for length in (natural, natural + 30, natural - 3):
        prompt = pictures.prompt(length, 0)
        assert len(prompt.token_ids) == length
        assert sum(run.length for run in prompt.media) == 2 * pictures.tokens  # one file, twice: encoded once
        assert np.frombuffer(prompt.positions, "<i4").size == 3 * length
    with pytest.raises(ConfigError, match="leaves no text after the pictures"):
        pictures.prompt(10, 0)


def test_pictures_are_new_in_every_prompt(pictures: Pictures) -> None:
    first, second = (pictures.prompt(pictures.natural_length, number) for number in (1, 2))
    assert first.token_ids == second.token_ids
    assert first.inputs[0].digest != second.inputs[0].digest
    assert first.inputs[0].pixels != second.inputs[0].pixels
    assert {run.digest for run in first.media}.isdisjoint(run.digest for run in second.media)


def test_the_command(folder: Path, file: Path, tmp_path: Path, capsys) -> None:
    results = tmp_path / "r.jsonl"
    words = ["bench", "one-batch", f"model.path={folder}", *OPTIONS, "--image", str(file), "--prompt", "what?"]
    sizes = ["--batch-size", "1", "2", "--output-len", "3", "--repeats", "1"]
    assert main([*words, *sizes, "--result-filename", str(results)]) == 0
    assert "VISION TOWER ms" in capsys.readouterr().out
    found = [json.loads(line) for line in results.read_text().splitlines()]
    assert [line["batch_size"] for line in found] == [1, 2]
    for line in found:
        assert 0 < line["image_tokens"] < line["input_len"]
        assert 0 < line["vit_prefill_ms"] < 1e3 * line["prefill_latency"] * 2
        assert line["multimodal_prefill_ms"] == pytest.approx(1e3 * line["prefill_latency"])
        assert line["compute_share"] is None


@pytest.mark.parametrize(
    "options, sentence",
    [
        (["--prompt", "what?"], "--prompt has an effect only with --image"),
        (["--image", "/nowhere/a.png"], "/nowhere/a.png"),
    ],
)
def test_what_is_refused(folder: Path, options: list[str], sentence: str, capsys) -> None:
    assert main(["bench", "one-batch", f"model.path={folder}", *OPTIONS, *options]) == 2
    assert sentence in capsys.readouterr().err


def test_a_model_of_text_alone(file: Path, tmp_path: Path, capsys) -> None:
    folder = make_tiny_checkpoint(tmp_path, "qwen3")
    assert main(["bench", "one-batch", f"model.path={folder}", *OPTIONS, "--image", str(file)]) == 2
    assert "takes no images" in capsys.readouterr().err
