"""Prompts are expanded, and positions given, as transformers does it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pymllm.errors import CheckpointError, RequestError
from pymllm.interfaces import ProcessorContext
from pymllm.testing.media_prompt import Clip, Medium, clip, picture, processed
from pymllm_model_qwen3_vl.processor import Qwen3VLProcessor

IMAGE = "<|vision_start|><|image_pad|><|vision_end|>"
VIDEO = "<|vision_start|><|video_pad|><|vision_end|>"

PROMPTS: dict[str, tuple[str, list[Medium]]] = {
    "an image first": (f"{IMAGE} what is it?", [picture(0, 70, 150)]),
    "an image last": (f"what is it? {IMAGE}", [picture(0, 150, 70)]),
    "nothing but an image": ("<|image_pad|>", [picture(0, 64, 64)]),
    "text between images": (f"one {IMAGE} two {IMAGE}{IMAGE} end", [picture(i, 64 + 30 * i, 99) for i in range(3)]),
    "a long video": (f"a {VIDEO} b", [clip(0, 11, 64, 96, fps=3.0)]),
    "one frame in two seconds": (f"a {VIDEO} b", [clip(0, 3, 40, 40, fps=0.5)]),
    "images among videos": (
        f"{VIDEO} x {IMAGE} y {IMAGE}{VIDEO} z",
        [clip(0, 3, 64, 64), picture(1, 90, 64), picture(2, 64, 120), clip(3, 4, 33, 77)],
    ),
    "turns": (
        f"<|im_start|>user\n{IMAGE}a<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n"
        f"<|im_start|>user\n{IMAGE}<|im_end|>\n",
        [picture(0, 100, 64), picture(1, 64, 100)],
    ),
}


@pytest.fixture
def processor(tiny: Path, transformers64: Any) -> Qwen3VLProcessor:
    config = json.loads((tiny / "config.json").read_text())
    tokenizer = transformers64.processor.tokenizer
    encode = lambda text: tokenizer(text, add_special_tokens=False)["input_ids"]  # noqa: E731
    return Qwen3VLProcessor(config, ProcessorContext(tiny, encode=encode))


@pytest.mark.parametrize("name", PROMPTS)
def test_tokens_and_positions_equal_transformers(processor: Any, transformers64: Any, name: str) -> None:
    text, media = PROMPTS[name]
    inputs = transformers64.inputs(text, media)
    placed = processor.place(
        transformers64.processor.tokenizer(text)["input_ids"], [processed(processor, m) for m in media]
    )
    positions, delta = transformers64.model.model.get_rope_index(
        inputs["input_ids"],
        inputs["mm_token_type_ids"],
        image_grid_thw=inputs.get("image_grid_thw"),
        video_grid_thw=inputs.get("video_grid_thw"),
    )
    assert placed.token_ids == inputs["input_ids"][0].tolist()
    assert placed.positions.dtype == np.int32
    assert np.array_equal(placed.positions, positions[:, 0].numpy())
    assert placed.position_delta == int(delta)
    kinds = inputs["mm_token_type_ids"][0].tolist()
    covered = [i for run in placed.runs for i in range(run.start, run.end)]
    assert covered == [i for i, kind in enumerate(kinds) if kind]


def test_kinds_are_matched_by_their_order(processor: Qwen3VLProcessor, transformers64: Any) -> None:
    """A caller may give images and videos in two lists."""
    media = [
        processor.image(picture(0, 64, 64)),
        processor.image(picture(1, 64, 96)),
        _video(processor, clip(2, 2, 64, 64)),
    ]
    tokens = transformers64.processor.tokenizer(f"{IMAGE}{VIDEO}{IMAGE}")["input_ids"]
    assert [run.media for run in processor.place(tokens, media).runs] == [0, 2, 1]


def test_a_mismatch_says_both_numbers(processor: Qwen3VLProcessor, transformers64: Any) -> None:
    tokens = transformers64.processor.tokenizer(f"{IMAGE}{IMAGE}{VIDEO}")["input_ids"]
    with pytest.raises(
        RequestError, match="placeholders of 2 images and 1 videos, but there are 1 images and 0 videos"
    ):
        processor.place(tokens, [processor.image(picture(0, 64, 64))])


def test_a_video_without_a_tokenizer_is_refused(tiny: Path) -> None:
    config = json.loads((tiny / "config.json").read_text())
    processor = Qwen3VLProcessor(config, ProcessorContext(tiny))
    assert len(processor.place([config["image_token_id"]], [processor.image(picture(0, 64, 64))]).token_ids) == 4
    with pytest.raises(RequestError, match="no tokenizer"):
        processor.place([config["video_token_id"]], [_video(processor, clip(0, 2, 64, 64))])


def test_a_config_without_token_ids_is_refused(tiny: Path) -> None:
    config = json.loads((tiny / "config.json").read_text())
    del config["video_token_id"]
    with pytest.raises(CheckpointError, match="video_token_id"):
        Qwen3VLProcessor(config, ProcessorContext(tiny))


def _video(processor: Qwen3VLProcessor, video: Clip) -> Any:
    return processor.video(video.frames, video.timestamps)
