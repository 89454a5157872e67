"""What ``pymllm quantize`` knows of Qwen3-VL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pymllm.interfaces.compression import Compression, Smooth, decoder

BLOCK = r"re:model\.visual\.blocks\.\d+\."


def sample(
    folder: Path, config: Mapping[str, Any], tokenizer: Any, messages: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """A conversation as transformers' model takes it. folder: of the checkpoint and its processor's files."""
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    images = [
        part["image"]
        for message in messages
        if not isinstance(message["content"], str)
        for part in message["content"]
        if part["type"] == "image"
    ]
    text = tokenizer.apply_chat_template(messages, tokenize=False)
    seen: dict[str, Any] = {}
    if images:
        seen = dict(Qwen2VLImageProcessorPil.from_pretrained(folder)(images=images, return_tensors="pt"))
        merged = config["vision_config"]["spatial_merge_size"] ** 2
        counts = iter((seen["image_grid_thw"].prod(-1) // merged).tolist())
        pad = tokenizer.decode([config["image_token_id"]])
        first, *rest = text.split(pad)
        text = first + "".join(pad * next(counts) + piece for piece in rest)
    prompt = dict(tokenizer(text, return_tensors="pt", add_special_tokens=False))
    prompt.pop("token_type_ids", None)
    kinds = (prompt["input_ids"] == config["image_token_id"]).int()
    return {**prompt, **seen, "mm_token_type_ids": kinds}


COMPRESSION = Compression(
    smooth=(
        *decoder(r"model\.language_model"),
        Smooth(f"{BLOCK}norm1$", (rf"{BLOCK}attn\.qkv$",)),
        Smooth(f"{BLOCK}norm2$", (rf"{BLOCK}mlp\.linear_fc1$",)),
    ),
    keep=(
        "re:.*lm_head$",
        r"re:model\.visual\.(patch_embed|pos_embed|merger|deepstack_merger_list)\..*",
    ),
    seeing=(r"re:model\.visual\..*",),
    sample=sample,
)
