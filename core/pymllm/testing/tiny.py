"""Random tiny checkpoints in the Hugging Face layout, for tests: a second to make, milliseconds to run."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from torch import nn

Architecture = Literal["llama", "qwen2", "qwen3"]

MERGES = (
    ("Ġ", "t"), ("h", "e"), ("Ġt", "he"), ("i", "n"), ("Ġ", "a"), ("e", "r"), ("o", "n"), ("Ġ", "s"), ("a", "t"),
    ("o", "u"), ("Ġ", "w"), ("e", "n"), ("i", "t"), ("l", "l"), ("Ġ", "o"), ("in", "g"), ("r", "e"), ("a", "n"),
    ("Ġ", "c"), ("e", "s"), ("o", "r"), ("Ġa", "n"), ("Ġan", "d"), ("Ġ", "f"), ("Ġ", "b"), ("i", "s"), ("e", "d"),
    ("Ã", "©"), ("ð", "Ł"),
)  # fmt: skip
"""Byte-pair merges in the byte-level alphabet: common English pairs, one whole two-byte character (é) and
the first half of many four-byte ones, so that characters fall apart into tokens."""

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def make_tokenizer(special_tokens: Sequence[str] = SPECIAL_TOKENS) -> Tokenizer:
    """A byte-level BPE tokenizer of 288 tokens: 256 bytes, 29 merges, then the special tokens, by default three."""
    tokens = sorted(pre_tokenizers.ByteLevel.alphabet()) + [left + right for left, right in MERGES]
    vocab = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=list(MERGES)))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special_tokens])
    return tokenizer


def make_tiny_checkpoint(
    folder: str | Path, architecture: Architecture = "llama", *, seed: int = 0, vocab_size: int = 288, **config: Any
) -> Path:
    """Write a random checkpoint that transformers can load, with a tokenizer and a chat template.

    The model has 3 layers, hidden size 64, 4 heads of 16 and 2 key/value heads, in float32. Its weights are
    large enough that the likeliest token varies from position to position.

    folder: created if missing. seed: equal seeds give equal weights. vocab_size: rows of the embedding, at
        least 288 (the tokenizer's); more are padding, as many published models have.
    config: keys of the transformers config to override, e.g. ``tie_word_embeddings=True``.
    Returns the folder.
    """
    tokenizer = make_tokenizer()
    if vocab_size < tokenizer.get_vocab_size():
        raise ValueError(f"vocab_size must be at least {tokenizer.get_vocab_size()}, the tokenizer's size")
    folder = Path(folder)
    model = _random_model(architecture, seed, {"vocab_size": vocab_size, **config})
    model.save_pretrained(folder)
    save_tokenizer(tokenizer, folder)
    return folder


def _random_model(architecture: Architecture, seed: int, overrides: dict[str, Any]) -> Any:
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM, GenerationConfig

    end, pad = special_id("<|im_end|>"), special_id("<|endoftext|>")
    fields: dict[str, Any] = {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 1024,
        "tie_word_embeddings": False,
        "bos_token_id": None,
        "eos_token_id": end,
        "pad_token_id": pad,
        **overrides,
    }
    if architecture == "qwen2":
        fields.pop("head_dim", None)
    config = CONFIG_MAPPING[architecture](**fields)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        randomize(model)
    model.generation_config = GenerationConfig(eos_token_id=[end, pad], pad_token_id=pad)
    return model


def special_id(token: str) -> int:
    """The id of one of the SPECIAL_TOKENS."""
    return 256 + len(MERGES) + SPECIAL_TOKENS.index(token)


@torch.no_grad()
def randomize(model: nn.Module) -> None:
    """Every tensor differs from its neutral value, so that a forgotten one shows in the logits."""
    for name, parameter in model.named_parameters():
        if re.search(r"norm\d*\.weight$", name):
            parameter.uniform_(0.5, 1.5)
        else:
            parameter.normal_(std=0.2)


def save_tokenizer(tokenizer: Tokenizer, folder: Path, chat_template: str = CHAT_TEMPLATE) -> None:
    """Write a tokenizer of :func:`make_tokenizer` and its chat template into a checkpoint folder."""
    from transformers import PreTrainedTokenizerFast

    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=["<|im_start|>"],
        chat_template=chat_template,
        clean_up_tokenization_spaces=False,
    )
    fast.save_pretrained(folder)
