"""Random tiny vision-language checkpoints in the Hugging Face layout, processor files included."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from pymllm.testing.tiny import SPECIAL_TOKENS, make_tokenizer, randomize, save_tokenizer, special_id

VISION_TOKENS = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")

VISION_CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}{% for part in message['content'] %}"
    "{% if part['type'] in ('image', 'image_url') %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% elif part['type'] in ('video', 'video_url') %}<|vision_start|><|video_pad|><|vision_end|>"
    "{% elif 'text' in part %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

IMAGE_SIZE = {"shortest_edge": 4096, "longest_edge": 36864}
VIDEO_SIZE = {"shortest_edge": 4096, "longest_edge": 49152}


def make_tiny_vision_checkpoint(
    folder: str | Path, *, seed: int = 0, vision: Mapping[str, Any] | None = None, tied: bool = False, **text: Any
) -> Path:
    """Write a random Qwen3-VL checkpoint that transformers can load, with tokenizer, chat template and processor
    files. An image has 4 to 36 tokens.

    The language model is that of :func:`pymllm.testing.make_tiny_checkpoint`; the vision tower has 4 blocks of two
    heads of 64 and two deepstack levels, in float32.

    folder: created if missing. seed: equal seeds give equal weights. vision, text: keys of ``vision_config`` and
    ``text_config`` to override. tied: whether the head shares the embedding's weight. Returns the folder.
    """
    from transformers import GenerationConfig, Qwen3VLConfig, Qwen3VLForConditionalGeneration

    folder = Path(folder)
    tokenizer = make_tokenizer((*SPECIAL_TOKENS, *VISION_TOKENS))
    end, pad = special_id("<|im_end|>"), special_id("<|endoftext|>")
    ids: dict[str, Any] = {token: tokenizer.token_to_id(token) for token in VISION_TOKENS}
    config = Qwen3VLConfig(
        text_config=_text_config(tokenizer.get_vocab_size(), end, pad) | text,
        vision_config=_vision_config() | dict(vision or {}),
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        tie_word_embeddings=tied,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: Any = Qwen3VLForConditionalGeneration(config).float()
        randomize(model)
        model.tie_weights()
    model.generation_config = GenerationConfig(eos_token_id=[end, pad], pad_token_id=pad)
    model.save_pretrained(folder)
    save_tokenizer(tokenizer, folder, VISION_CHAT_TEMPLATE)
    _write_processor_files(folder, config.vision_config)
    return folder


def _text_config(vocabulary: int, end: int, pad: int) -> dict[str, Any]:
    return {
        "vocab_size": vocabulary,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 1024,
        "bos_token_id": None,
        "eos_token_id": end,
        "pad_token_id": pad,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10000.0,
            "mrope_section": [4, 2, 2],
            "mrope_interleaved": True,
        },
    }


def _vision_config() -> dict[str, Any]:
    return {
        "depth": 4,
        "hidden_size": 128,
        "intermediate_size": 192,
        "num_heads": 2,
        "out_hidden_size": 64,
        "num_position_embeddings": 36,
        "deepstack_visual_indexes": [0, 2],
    }


def _write_processor_files(folder: Path, vision: Any) -> None:
    common = {
        "patch_size": vision.patch_size,
        "temporal_patch_size": vision.temporal_patch_size,
        "merge_size": vision.spatial_merge_size,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
        "processor_class": "Qwen3VLProcessor",
    }
    image = {**common, "size": IMAGE_SIZE, "image_processor_type": "Qwen2VLImageProcessorFast"}
    video = {**common, "size": VIDEO_SIZE, "video_processor_type": "Qwen3VLVideoProcessor"}
    for name, content in (("preprocessor_config.json", image), ("video_preprocessor_config.json", video)):
        (folder / name).write_text(json.dumps(content, indent=2), encoding="utf-8")
