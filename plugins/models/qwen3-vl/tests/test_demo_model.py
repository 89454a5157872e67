"""The model that comes with the plugin sees what it was trained to see, through the configuration that names it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from transformers import AutoTokenizer, Qwen3VLForConditionalGeneration
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from pymllm import LLM
from pymllm.cli import main
from pymllm.sampling import SamplingParams
from pymllm_model_qwen3_vl.demo import __main__ as demo
from pymllm_model_qwen3_vl.demo.held_out import held_out

CONFIG = Path(__file__).parents[4] / "configs" / "quickstart-vision.yaml"
FOLDER = Path(demo.__file__).parent / "model"
WHOLE = {"model.dtype": "float32"}


@pytest.fixture(scope="module")
def seeing() -> Iterator[LLM]:
    with LLM(CONFIG, WHOLE, progress=False) as llm:
        yield llm


def test_it_is_small_and_fit_for_every_quantization() -> None:
    config = json.loads((FOLDER / "config.json").read_text())
    assert config["architectures"] == ["Qwen3VLForConditionalGeneration"]
    assert (FOLDER / "model.safetensors").stat().st_size <= 10_000_000
    text, vision = config["text_config"], config["vision_config"]
    widths = [text["hidden_size"], text["intermediate_size"], text["num_key_value_heads"] * text["head_dim"]]
    assert [width % 128 for width in widths] == [0, 0, 0]
    assert [vision[name] % 64 for name in ("hidden_size", "intermediate_size", "out_hidden_size")] == [0, 0, 0]


def test_it_answers_nearly_all_questions(capsys: pytest.CaptureFixture[str]) -> None:
    """Of a part of the held-out set; kinds and languages take turns in it."""
    assert main(["eval", str(CONFIG), "model.dtype=float32", "--questions", "240", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["engine"]["parameters"] <= 5_000_000
    assert found["questions_by_kind"] == dict.fromkeys(found["by_kind"], 40)
    assert found["accuracy"] >= 0.97
    assert min(found["by_kind"].values()) > 0.9


def test_it_answers_what_it_answers_in_transformers(seeing: LLM) -> None:
    model: Any = Qwen3VLForConditionalGeneration.from_pretrained(FOLDER, dtype=torch.float32).eval()
    tokenizer: Any = AutoTokenizer.from_pretrained(FOLDER)
    processor: Any = Qwen2VLImageProcessorPil.from_pretrained(FOLDER)
    for question in islice(held_out(), 12):
        picture = Image.fromarray(question.images[0])
        text = tokenizer.apply_chat_template(
            [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": question.text}]}],
            add_generation_prompt=True,
            tokenize=False,
        )
        pixels = processor(images=[picture], return_tensors="pt")
        places = "<|image_pad|>" * (int(pixels["image_grid_thw"].prod()) // 4)
        prompt = tokenizer(text.replace("<|image_pad|>", places), return_tensors="pt")
        kinds = (prompt["input_ids"] == model.config.image_token_id).int()
        whole = model.generate(**prompt, **pixels, mm_token_type_ids=kinds, max_new_tokens=16, do_sample=False)
        expected = whole[0, prompt["input_ids"].shape[1] :].tolist()
        content = [{"type": "image", "image": picture}, {"type": "text", "text": question.text}]
        [out] = seeing.chat([{"role": "user", "content": content}], SamplingParams(temperature=0, max_tokens=16))
        assert list(out.outputs[0].token_ids) == expected


def test_it_looks_at_the_right_one_of_two_pictures(seeing: LLM) -> None:
    """Trained with one picture a conversation, it says of each what is in it."""
    red, blue = (Image.new("RGB", (128, 96), "white") for _ in range(2))
    red.paste((220, 30, 30), (40, 24, 90, 74))
    blue.paste((30, 60, 220), (40, 24, 90, 74))
    for picture, colour in ((red, "red"), (blue, "blue"), (red, "red")):
        content = [{"type": "image", "image": picture}, {"type": "text", "text": "Which colour does the square have?"}]
        [out] = seeing.chat([{"role": "user", "content": content}], SamplingParams(temperature=0, max_tokens=8))
        assert out.outputs[0].text == colour


def test_pictures_to_try_it_on(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    monkeypatch.setattr("sys.argv", ["demo", str(tmp_path / "pictures"), "--count", "3"])
    demo.main()
    lines = capsys.readouterr().out.splitlines()
    for line, question in zip(lines, islice(held_out(), 3), strict=True):
        file, _, rest = line.partition(": ")
        assert rest == f"{question.text} ({question.answer})"
        assert Image.open(file).size == question.images[0].shape[1::-1]
