"""The processor files of a checkpoint: how large pictures and videos may be."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pymllm.errors import CheckpointError
from pymllm_model_qwen3_vl.sizes import VisionSizes, integer

IMAGE_SIZE = {"shortest_edge": 65536, "longest_edge": 16777216}
VIDEO_SIZE = {"shortest_edge": 4096, "longest_edge": 25165824}
"""Of every published Qwen3-VL, for a checkpoint without processor files."""

FRAME_TOKENS = 768


@dataclass(frozen=True)
class Bounds:
    """Pixels after resizing: at least, at most."""

    least: int
    most: int


@dataclass(frozen=True)
class Settings:
    """image: pixels of an image. video: pixels of all frames of a video. frame_pixels: most of one frame of a video,
    where the checkpoint bounds them (``cap_pixels_per_frame``), else None."""

    image: Bounds
    video: Bounds
    frame_pixels: int | None


def read_settings(folder: Path, sizes: VisionSizes) -> Settings:
    """Read processor_config.json or, where that says nothing of them, preprocessor_config.json and
    video_preprocessor_config.json.

    Raises CheckpointError, naming file and key, for files that are unreadable, do not fit config.json, or ask for
    another processing than the model computes.
    """
    both = _read(folder / "processor_config.json")
    single = _read(folder / "preprocessor_config.json")
    image = both.get("image_processor") or single
    video = both.get("video_processor") or _read(folder / "video_preprocessor_config.json") or single
    for what, section in (("image", image), ("video", video)):
        _check(f"the {what} processor's settings in {folder}", section, sizes)
    capped = video.get("cap_pixels_per_frame") is True
    frame_tokens = integer({"max_video_tokens": FRAME_TOKENS, **video}, "max_video_tokens")
    return Settings(
        image=_bounds(image, IMAGE_SIZE),
        video=_bounds(video, VIDEO_SIZE),
        frame_pixels=frame_tokens * sizes.unit**2 if capped else None,
    )


def _read(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{file} cannot be read ({error}): fetch it again") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{file} does not hold a JSON object: fetch it again")
    return content


def _check(where: str, section: Mapping[str, Any], sizes: VisionSizes) -> None:
    expected = {
        "patch_size": sizes.patch,
        "temporal_patch_size": sizes.temporal_patch,
        "merge_size": sizes.merge,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
        "rescale_factor": 1 / 255,
        "resample": 3,  # bicubic
        "do_resize": True,
        "do_rescale": True,
        "do_normalize": True,
    }
    for key, value in expected.items():
        if section.get(key) is not None and section[key] != value:
            raise CheckpointError(f"{where}: {key} {section[key]!r} is not supported (supported: {value!r})")


def _bounds(section: Mapping[str, Any], default: Mapping[str, int]) -> Bounds:
    size = section.get("size") or default
    least = section.get("min_pixels") or size.get("shortest_edge")
    most = section.get("max_pixels") or size.get("longest_edge")
    given = {"shortest_edge": least, "longest_edge": most}
    bounds = Bounds(integer(given, "shortest_edge"), integer(given, "longest_edge"))
    if bounds.least > bounds.most:
        raise CheckpointError(f"the processor's shortest_edge {bounds.least} is more than its longest_edge")
    return bounds
