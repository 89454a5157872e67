"""Pictures in messages, as clients send them, and as transformers' prompts hold them."""

from __future__ import annotations

from base64 import b64encode
from typing import Any

import numpy as np
from PIL import Image

from media_files import saved
from pymllm.testing.media_prompt import Clip

IMAGE = "<|vision_start|><|image_pad|><|vision_end|>"
VIDEO = "<|vision_start|><|video_pad|><|vision_end|>"
OPEN = "<|im_start|>assistant\n"


def said(role: str, text: str) -> str:
    """A message as the tiny checkpoints' template writes it."""
    return f"<|im_start|>{role}\n{text}<|im_end|>\n"


def png_url(pixels: np.ndarray) -> str:
    """A data: URL of a picture [H, W, 3]."""
    return "data:image/png;base64," + b64encode(saved(Image.fromarray(pixels), "PNG")).decode()


def image(pixels: np.ndarray, **more: Any) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": png_url(pixels), **more}}


def video(clip: Clip, **more: Any) -> dict[str, Any]:
    return {"type": "video", "video": [png_url(frame) for frame in clip.frames], **more}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def user(*parts: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(parts)}
