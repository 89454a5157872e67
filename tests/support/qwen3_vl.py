"""Transformers' Qwen3-VL as the reference."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from transformers import AutoTokenizer, Qwen3VLForConditionalGeneration
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.models.qwen3_vl.processing_qwen3_vl import Qwen3VLProcessor
from transformers.models.qwen3_vl.video_processing_qwen3_vl import Qwen3VLVideoProcessor, smart_resize
from transformers.video_utils import VideoMetadata

from pymllm.testing.media import Expected
from pymllm.testing.media_prompt import Clip, Medium


class PilVideoProcessor(Qwen3VLVideoProcessor):
    """Transformers' video processor without torchvision, which is no requirement of pymllm: PIL resizes the frames, to
    the size that transformers computes. Grids, padding, patches and timestamps stay its own."""

    def convert_to_rgb(self, video: torch.Tensor) -> torch.Tensor:
        return video

    def resize(self, videos: torch.Tensor, size: Any, factor: int, temporal_factor: int, **_: Any) -> torch.Tensor:
        count, height, width = videos.shape[1], *videos.shape[-2:]
        new = smart_resize(count, height, width, temporal_factor, factor, size.shortest_edge, size.longest_edge)
        frames = [
            np.asarray(Image.fromarray(frame).resize(new[::-1], Image.Resampling.BICUBIC))
            for frame in videos[0].permute(0, 2, 3, 1).numpy()
        ]
        return torch.from_numpy(np.stack(frames)).permute(0, 3, 1, 2)[None]

    def normalize(self, image: torch.Tensor, mean: Any, std: Any) -> torch.Tensor:
        mean, std = (torch.as_tensor(x, dtype=torch.float32).view(3, 1, 1) for x in (mean, std))
        return (image - mean) / std


class UncheckedProcessor(Qwen3VLProcessor):
    """Without torchvision, transformers has a stand-in for the class that it checks its video processor against."""

    def check_argument_for_proper_class(self, argument_name: str, argument: Any) -> type:
        return type(argument)


class Transformers:
    """A checkpoint in transformers, in float32."""

    def __init__(self, folder: Path) -> None:
        self.model: Any = Qwen3VLForConditionalGeneration.from_pretrained(folder, dtype=torch.float32)
        video = json.loads((folder / "video_preprocessor_config.json").read_text())
        self.processor = UncheckedProcessor(
            image_processor=Qwen2VLImageProcessorPil.from_pretrained(folder),
            tokenizer=AutoTokenizer.from_pretrained(folder),
            video_processor=PilVideoProcessor(**video, cap_pixels_per_frame=False),
        )

    def inputs(self, text: str, media: Sequence[Medium]) -> dict[str, torch.Tensor]:
        """Everything that the model takes."""
        clips = [medium for medium in media if isinstance(medium, Clip)]
        fps = 1000.0
        metadata = [
            VideoMetadata(
                total_num_frames=len(clip.frames), fps=fps, frames_indices=[int(t * fps) for t in clip.timestamps]
            )
            for clip in clips
        ]
        videos = {"videos": [clip.frames for clip in clips], "video_metadata": metadata, "do_sample_frames": False}
        images = [medium for medium in media if not isinstance(medium, Clip)]
        found: Any = self.processor(
            text=[text], images=images or None, **(videos if clips else {}), return_tensors="pt"
        )
        return dict(found)

    @torch.inference_mode()
    def __call__(self, text: str, media: Sequence[Medium]) -> Expected:
        inputs = self.inputs(text, media)
        return Expected(inputs["input_ids"][0].tolist(), self.model(**inputs).logits[0])

    @torch.inference_mode()
    def answer(self, text: str, media: Sequence[Medium], max_new_tokens: int) -> list[int]:
        """The greedy continuation, end token included."""
        inputs = self.inputs(text, media)
        found = self.model.generate(**inputs, max_new_tokens=max_new_tokens, do_sample=False)
        return found[0, inputs["input_ids"].shape[1] :].tolist()
