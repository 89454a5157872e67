"""What a checkpoint holds beside its weights: tokenizer, chat template, settings of the processors."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from pymllm_model_qwen3_vl.demo.phrases import QUESTIONS
from pymllm_model_qwen3_vl.demo.words import COLOURS, KINDS, PLACES, PLURALS, SIZES

SPECIAL_TOKENS = (
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>", "<|box_start|>",
    "<|box_end|>", "<|quad_start|>", "<|quad_end|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>",
    "<|image_pad|>", "<|video_pad|>",
)  # fmt: skip

VOCABULARY = 640
"""Tokens in all, special ones included."""

SPLIT = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
"""Words with the space before them, single digits, punctuation, white space, as Qwen's tokenizers split."""

CHAT_TEMPLATE = (
    "{%- for message in messages %}{{- '<|im_start|>' + message.role + '\\n' }}"
    "{%- if message.content is string %}{{- message.content }}"
    "{%- else %}{%- for part in message.content %}"
    "{%- if part.type in ('image', 'image_url') %}{{- '<|vision_start|><|image_pad|><|vision_end|>' }}"
    "{%- elif part.type in ('video', 'video_url') %}{{- '<|vision_start|><|video_pad|><|vision_end|>' }}"
    "{%- elif 'text' in part %}{{- part.text }}{%- endif %}{%- endfor %}{%- endif %}{{- '<|im_end|>\\n' }}"
    "{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)

SIDES = (64, 224)
"""A picture is resized to at least and at most the pixels of a square with these sides."""


def make_tokenizer() -> Tokenizer:
    """A byte-level BPE tokenizer that knows the words of the demo, and takes any text."""
    tokenizer = Tokenizer(models.BPE())
    # Characters that are words must not grow together: there are more of those pairs than tokens.
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"\p{Han}"), "isolated"),
            pre_tokenizers.Split(Regex(SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_corpus(), trainer)
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS])
    return tokenizer


def _corpus() -> Iterator[str]:
    """Every way to ask, every name and every answer, and what stands around them."""
    for ways in QUESTIONS.values():
        yield from (way.replace("{it}", "").replace("{other}", "") for texts in ways.values() for way in texts)
    terms = [*SIZES.values(), *COLOURS.values(), *(place for row in PLACES for place in row)]
    for (name, kind), term in product(KINDS.items(), terms):
        yield from (f"{term.en} {kind.en}", f" {term.en} {PLURALS[name]}", f"{term.zh}{kind.zh}", term.en, term.zh)
    yield from ("user\n", "assistant\n", "system\n", "shape", " shapes", " one", "图形", "0123456789") * 8


def write_files(folder: Path, tokenizer: Tokenizer, vision: Any) -> None:
    """Write tokenizer, chat template and the processors' settings. vision: the model's ``vision_config``."""
    from transformers import PreTrainedTokenizerFast

    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    ).save_pretrained(folder)
    least, most = (side * side for side in SIDES)
    common = {
        "patch_size": vision.patch_size,
        "temporal_patch_size": vision.temporal_patch_size,
        "merge_size": vision.spatial_merge_size,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
        "processor_class": "Qwen3VLProcessor",
    }
    sizes = {"shortest_edge": least, "longest_edge": most}
    image = {"size": sizes, "image_processor_type": "Qwen2VLImageProcessorFast"}
    video = {"size": {**sizes, "longest_edge": 4 * most}, "video_processor_type": "Qwen3VLVideoProcessor"}
    for name, own in (("preprocessor_config.json", image), ("video_preprocessor_config.json", video)):
        (folder / name).write_text(json.dumps({**common, **own}, indent=2) + "\n", encoding="utf-8")
