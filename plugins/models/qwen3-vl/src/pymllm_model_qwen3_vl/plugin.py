"""What the plugin offers; nothing heavy is imported here."""

from __future__ import annotations

from dataclasses import dataclass

from pymllm.plugin import ModelOptions, ModelSpec, hookimpl


@dataclass
class Qwen3VLOptions(ModelOptions):
    """Keys of ``model`` for Qwen3-VL. Both bound what a request may ask for, and with it the memory that encoding
    takes; None: the checkpoint's.

    image_max_pixels: height times width of an image after resizing. video_max_pixels: frames times height times width.
    """

    image_max_pixels: int | None = None
    video_max_pixels: int | None = None

    def __post_init__(self) -> None:
        for name in ("image_max_pixels", "video_max_pixels"):
            value = getattr(self, name)
            if isinstance(value, int) and value < 1:
                raise ValueError(f"{name} is {value}: it must be at least 1")


@hookimpl
def pymllm_model() -> ModelSpec:
    return ModelSpec(
        architectures=("Qwen3VLForConditionalGeneration",),
        config=Qwen3VLOptions,
        factory="pymllm_model_qwen3_vl.model:Qwen3VLModel",
        processor="pymllm_model_qwen3_vl.processor:Qwen3VLProcessor",
        compression="pymllm_model_qwen3_vl.compression:COMPRESSION",
        evaluation="pymllm_model_qwen3_vl.demo.held_out:held_out",
        summary="Qwen3-VL, dense: images, video and text",
    )
