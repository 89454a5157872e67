"""Pixels are transformers' to the last bit, whatever the sizes; bounds are kept, and what cannot be is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize as smart_image_size
from transformers.models.qwen3_vl.video_processing_qwen3_vl import smart_resize as smart_video_size

from pymllm.errors import CheckpointError, RequestError
from pymllm.interfaces import ProcessorContext
from pymllm.testing.harness import load_model
from pymllm.testing.media_prompt import Clip, clip, media_item, picture, processed
from pymllm_model_qwen3_vl.model import Qwen3VLModel
from pymllm_model_qwen3_vl.plugin import Qwen3VLOptions
from pymllm_model_qwen3_vl.processor import Qwen3VLProcessor
from pymllm_model_qwen3_vl.resizing import image_size, video_size
from pymllm_model_qwen3_vl.settings import Bounds

SIDES = st.integers(1, 3000)


def make(folder: Path, **options: int) -> Qwen3VLProcessor:
    config = json.loads((folder / "config.json").read_text())
    return Qwen3VLProcessor(config, ProcessorContext(folder, Qwen3VLOptions(**options), lambda text: [0]))


@pytest.fixture
def processor(tiny: Path) -> Qwen3VLProcessor:
    return make(tiny)


@pytest.fixture
def patches(tiny: Path) -> Any:
    """Processed media -> what the model makes of them before it projects patches."""
    embedding: Any = load_model(tiny, Qwen3VLModel).model.vision.patches
    return lambda media: torch.cat([embedding.patches(media_item(medium)) for medium in media])


SIZES = [(64, 64), (33, 91), (150, 149), (7, 300), (500, 401), (1, 1)]


def test_images_become_the_same_patches(processor: Qwen3VLProcessor, patches: Any, transformers64: Any) -> None:
    images = [picture(seed, *size) for seed, size in enumerate(SIZES)]
    expected = transformers64.processor.image_processor(images, input_data_format="channels_last", return_tensors="pt")
    found = [processor.image(image) for image in images]
    assert [list(medium.grid) for medium in found] == expected["image_grid_thw"].tolist()
    assert torch.equal(patches(found), expected["pixel_values"])


@pytest.mark.parametrize("video", [clip(0, 4, 64, 96), clip(1, 5, 37, 70), clip(2, 2, 20, 260), clip(3, 9, 128, 90)])
def test_videos_become_the_same_patches(
    processor: Qwen3VLProcessor, patches: Any, transformers64: Any, video: Clip
) -> None:
    found = processed(processor, video)
    expected = transformers64.inputs("<|video_pad|>", [video])
    assert list(found.grid) == expected["video_grid_thw"][0].tolist()
    # Transformers normalizes the frames of videos by (x - 127.5) / 127.5, a rounding less.
    torch.testing.assert_close(patches([found]), expected["pixel_values_videos"], rtol=0, atol=2**-23)


def test_one_frame_fills_a_patch_in_time(processor: Qwen3VLProcessor) -> None:
    found = processor.video(picture(0, 64, 64)[None], [3.0])
    assert (found.grid[0], len(found.pixels), found.timestamps) == (1, 2, (3.0,))
    assert np.array_equal(found.pixels[0], found.pixels[1])


@settings(max_examples=300, deadline=None)
@given(SIDES, SIDES, st.integers(1, 10**6), st.integers(1, 10**6))
def test_image_sizes_are_those_of_transformers(height: int, width: int, least: int, more: int) -> None:
    bounds = Bounds(least, least + more)
    if max(height, width) > 200 * min(height, width):
        with pytest.raises(RequestError, match="200 times"):
            image_size((height, width), 32, bounds)
    else:
        expected = smart_image_size(height, width, 32, bounds.least, bounds.most)
        assert image_size((height, width), 32, bounds) == expected


@settings(max_examples=300, deadline=None)
@given(st.integers(2, 50), st.integers(20, 2000), st.integers(20, 2000), st.integers(1, 10**6), st.integers(1, 10**7))
def test_video_sizes_are_those_of_transformers(frames: int, height: int, width: int, least: int, more: int) -> None:
    bounds = Bounds(least, least + more)
    expected = smart_video_size(frames, height, width, 2, 32, bounds.least, bounds.most)
    assert video_size(frames, (height, width), 32, 2, bounds) == expected


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 400), st.integers(1, 400))
def test_no_image_has_more_than_max_tokens(tiny: Path, height: int, width: int) -> None:
    if max(height, width) <= 200 * min(height, width):
        processor = make(tiny)
        assert processor.image(np.zeros((height, width, 3), np.uint8)).tokens <= processor.max_tokens


@pytest.mark.parametrize("frames", [2, 3, 5, 9, 30])
def test_no_ordinary_video_is_refused(processor: Qwen3VLProcessor, frames: int) -> None:
    for size in ((300, 300), (200, 90), (20, 20)):
        assert processor.video(np.zeros((frames, *size, 3), np.uint8), range(frames)).tokens <= processor.max_tokens


def test_a_video_of_too_many_frames_is_refused(processor: Qwen3VLProcessor) -> None:
    with pytest.raises(RequestError, match="the video becomes 500 tokens, more than"):
        processor.video(np.zeros((1000, 32, 32, 3), np.uint8), range(1000))


# Bounds


def test_published_sizes_hold_without_processor_files(tiny: Path, tmp_path: Path) -> None:
    config = json.loads((tiny / "config.json").read_text())
    processor = Qwen3VLProcessor(config, ProcessorContext(tmp_path))
    assert processor.image(picture(0, 1024, 1024)).tokens == 1024
    assert processor.image(picture(0, 30, 30)).grid == (1, 16, 16)  # at least 65,536 pixels
    # The largest image is 16,777,216 pixels; the largest video 25,165,824, of which an odd frame counts half.
    assert processor.max_tokens == max(16777216, 25165824 * 3 // 4) // 32**2


def test_a_composite_file_goes_before_single_ones(tiny: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(tiny, tmp_path / "composite"))
    size = {"shortest_edge": 1024, "longest_edge": 2048}
    (folder / "processor_config.json").write_text(json.dumps({"image_processor": {"size": size}}))
    assert make(folder).image(picture(0, 500, 500)).pixels.shape == (1, 32, 32, 3)
    assert make(folder).video(picture(0, 90, 90)[None], [0.0]).pixels.shape == (2, 96, 96, 3)


def test_a_request_chooses_pixels_within_the_bounds(processor: Qwen3VLProcessor, tiny: Path) -> None:
    image = picture(0, 180, 180)
    expected = Qwen2VLImageProcessorPil.from_pretrained(tiny)(image, min_pixels=1024, max_pixels=9000)
    assert list(processor.image(image, max_pixels=9000).grid) == expected["image_grid_thw"][0].tolist()
    assert processor.image(picture(0, 20, 20), min_pixels=20000).grid == (1, 10, 10)
    with pytest.raises(RequestError, match=r"max_pixels is 36865.*at most 36864"):
        processor.image(image, max_pixels=36865)
    with pytest.raises(RequestError, match="min_pixels is 40000, more than the 36864"):
        processor.image(image, min_pixels=40000)


def test_low_detail_is_a_small_picture(tiny: Path, tmp_path: Path) -> None:
    config = json.loads((tiny / "config.json").read_text())
    processor = Qwen3VLProcessor(config, ProcessorContext(tmp_path))
    image = picture(0, 900, 1200)
    assert processor.image(image, detail="low").tokens == 13 * 18  # 416 x 576 pixels, at most 512 x 512
    assert processor.image(image, detail="high").tokens == processor.image(image).tokens == 28 * 38


def test_options_bound_what_a_request_may_ask_for(tiny: Path) -> None:
    small = make(tiny, image_max_pixels=8192, video_max_pixels=8192)
    assert small.image(picture(0, 300, 300)).pixels.shape == (1, 64, 64, 3)
    assert small.max_tokens < make(tiny).max_tokens
    with pytest.raises(RequestError, match=r"model\.image_max_pixels"):
        small.image(picture(0, 300, 300), max_pixels=9000)
    with pytest.raises(RequestError, match=r"model\.video_max_pixels"):
        small.video(picture(0, 300, 300)[None], [0.0], max_pixels=9000)
    with pytest.raises(ValueError, match="image_max_pixels is 0"):
        Qwen3VLOptions(image_max_pixels=0)


def test_frames_are_capped_where_the_checkpoint_says_so(tiny: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(tiny, tmp_path / "capped"))
    file = folder / "video_preprocessor_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "cap_pixels_per_frame": True, "max_video_tokens": 4}))
    frames = np.stack([picture(seed, 200, 200) for seed in range(4)])
    # 4 tokens a frame are 4096 pixels, but not less than 1.05 times the least, 4300: 64 x 64.
    assert make(folder).video(frames, range(4)).pixels.shape == (4, 64, 64, 3)
    assert make(tiny).video(frames, range(4)).pixels.shape == (4, 96, 96, 3)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"patch_size": 14}, "patch_size 14"),
        ({"image_mean": [0.48, 0.45, 0.4]}, "image_mean"),
        ({"do_resize": False}, "do_resize False"),
        ({"resample": 2}, "resample 2"),
        ({"size": {"height": 224, "width": 224}}, "shortest_edge = None"),
        ({"size": {"shortest_edge": 9, "longest_edge": 8}}, "shortest_edge 9 is more"),
    ],
)
def test_other_processing_is_refused_by_name(tiny: Path, tmp_path: Path, change: dict[str, Any], message: str) -> None:
    folder = Path(shutil.copytree(tiny, tmp_path / "other"))
    file = folder / "preprocessor_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    with pytest.raises(CheckpointError, match=message):
        make(folder)


def test_frames_without_timestamps_are_refused(processor: Qwen3VLProcessor) -> None:
    with pytest.raises(RequestError, match="2 frames and 1 timestamps"):
        processor.video(np.zeros((2, 32, 32, 3), np.uint8), [0.0])
    with pytest.raises(RequestError, match="0 frames"):
        processor.video(np.zeros((0, 32, 32, 3), np.uint8), [])
