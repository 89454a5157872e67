"""Tokenizers made from GGUF metadata, against a plain BPE written here, transformers, and cases by hand."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import regex
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from pymllm.checkpoint import Checkpoint, open_checkpoint
from pymllm.config import ModelConfig
from pymllm.errors import CheckpointError
from pymllm.frontend.tokenizer import eos_token_ids, load_tokenizer

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
LLAMA3 = QWEN2.replace(r"|\p{N}|", r"|\p{N}{1,3}|")
TEXTS = [
    "The capital of France is Paris.",
    "It's 2025-02-07, and I've 1234567 reasons: they'll SHOUT, DON'T they?",
    "  leading,  double  and trailing  ",
    "tabs\tand\n\nnew lines \r\n \n  x",
    "naïve café Zürich \u0065\u0301 Ελληνικά русский עברית العربية हिन्दी",
    "日本語のテキスト 中文 한국어 🎉🏳️‍🌈👩‍💻",
    "½ ٣٤ Ⅷ x² 3.14e-10 0xFF",
    "def f(x):\n    return {'a': [x**2 for _ in range(10)]}  # ok!\n",
    "",
    " ",
    "\u0000\u00a0\u2003\ufeff\U0010ffff",
    "a" * 100 + " " * 40,
]


def byte_alphabet() -> dict[int, str]:
    """GPT-2's printable stand-in for each byte."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + i) for i, byte in enumerate(others)}


ALPHABET = byte_alphabet()


def plain_bpe(words: list[str], vocabulary: dict[str, int], merges: list[str], *, whole: bool = False) -> list[int]:
    """Byte-level BPE straight from its description: join the neighbours of the best rank until none is left."""
    rank = {tuple(merge.split(" ")): i for i, merge in enumerate(merges)}
    ids = []
    for word in words:
        parts = [ALPHABET[byte] for byte in word.encode()]
        if whole and "".join(parts) in vocabulary:
            parts = ["".join(parts)]
        while len(parts) > 1:
            best = min(pairwise(parts), key=lambda pair: rank.get(pair, 1 << 40))
            if best not in rank:
                break
            i, joined = 0, []
            while i < len(parts):
                step = 2 if tuple(parts[i : i + 2]) == best else 1
                joined.append("".join(parts[i : i + step]))
                i += step
            parts = joined
        ids += [vocabulary[part] for part in parts]
    return ids


def smollm_words(text: str) -> list[str]:
    """Every numeric character alone; GPT-2's rule between them."""
    pieces = regex.findall(r"\p{N}|\P{N}+", text)
    return [word for piece in pieces for word in regex.findall(GPT2, piece)]


@pytest.fixture(scope="module")
def metadata(smollm2: Checkpoint) -> dict[str, Any]:
    """The vocabulary of SmolLM2."""
    found: dict[str, Any] = smollm2.file.metadata
    return {key: value for key, value in found.items() if key.startswith("tokenizer.")}


@pytest.fixture(scope="module")
def smollm(smollm2: Checkpoint) -> PreTrainedTokenizerBase:
    tokenizer = load_tokenizer(smollm2, ModelConfig(path=smollm2.name))
    assert tokenizer is not None
    return tokenizer


def open_with(
    write: Callable[..., None], path: Path, keys: dict[str, Any], arch: str = "llama"
) -> PreTrainedTokenizerBase | None:
    """The tokenizer of a GGUF file that holds these keys and nothing else of use."""
    write(path, arch, keys, {})
    return load_tokenizer(_Stub(path), ModelConfig(path=str(path)))


class _Stub:
    """load_tokenizer needs no more of a checkpoint than where it is."""

    def __init__(self, path: Path) -> None:
        self.path = path


@pytest.mark.parametrize("text", TEXTS)
def test_smollm2_equals_a_plain_bpe(smollm: PreTrainedTokenizerBase, metadata: dict[str, Any], text: str) -> None:
    vocabulary = {token: i for i, token in enumerate(metadata["tokenizer.ggml.tokens"])}
    expected = plain_bpe(smollm_words(text), vocabulary, metadata["tokenizer.ggml.merges"])
    assert smollm.encode(text) == expected
    assert smollm.decode(expected) == text


def test_smollm2_by_hand(smollm: PreTrainedTokenizerBase) -> None:
    assert smollm.convert_ids_to_tokens(smollm.encode("a 1234")) == ["a", "Ġ", "1", "2", "3", "4"]
    # "ĠÙ" is a token, and Ù the first byte of ٣: but a digit stands alone, whatever its script.
    assert smollm.encode(" ٣") == smollm.encode(" ") + smollm.encode("٣")
    assert smollm.encode("<|im_start|>user\n<|im_end|>") == [1, *smollm.encode("user\n"), 2]
    assert smollm.decode([1, 28120, 2], skip_special_tokens=True) == smollm.decode([28120])
    assert (smollm.bos_token, smollm.eos_token, smollm.pad_token) == ("<|im_start|>", "<|im_end|>", "<|im_end|>")
    assert len(smollm) == 49152
    chat = smollm.apply_chat_template([{"role": "user", "content": "Hi"}], add_generation_prompt=True, tokenize=False)
    assert chat == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )


def reduced(metadata: dict[str, Any], size: int = 1500) -> dict[str, Any]:
    """SmolLM2's vocabulary with the first tokens and merges only (transformers takes 20 s for all)."""
    tokens = metadata["tokenizer.ggml.tokens"][:size]
    known = set(tokens)
    merges = [m for m in metadata["tokenizer.ggml.merges"] if m.replace(" ", "") in known]
    types = metadata["tokenizer.ggml.token_type"][:size]
    return {
        **metadata,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.token_type": types,
    }


def test_transformers_reads_the_same_tokens(
    tmp_path: Path, convert: Callable[..., None], metadata: dict[str, Any]
) -> None:
    from transformers import AutoModelForCausalLM, LlamaConfig

    config = LlamaConfig(
        vocab_size=1500, hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=1, head_dim=32
    )
    convert(AutoModelForCausalLM.from_config(config), tmp_path / "m.gguf", **reduced(metadata))
    model = ModelConfig(path=str(tmp_path / "m.gguf"))
    ours = load_tokenizer(open_checkpoint(model), model)
    theirs = AutoTokenizer.from_pretrained(tmp_path, gguf_file="m.gguf")
    for text in [*TEXTS, "<|im_start|>user\nhello<|im_end|>\n"]:
        # transformers does not set single digits apart, which shows only next to digits that are not ASCII.
        if not any(char.isnumeric() and not char.isascii() for char in text):
            assert ours.encode(text) == theirs.encode(text), text


@pytest.mark.parametrize(
    ("pre", "arch", "pattern", "whole"),
    [
        ("qwen2", "qwen3", QWEN2, False),
        ("llama-bpe", "llama", LLAMA3, True),
        ("gpt-2", "llama", GPT2, False),
        (None, "llama", GPT2, False),
        (None, "qwen2", QWEN2, False),
    ],
)
def test_each_word_rule_equals_a_plain_bpe(
    pre: str | None,
    arch: str,
    pattern: str,
    whole: bool,
    tmp_path: Path,
    write_gguf: Callable[..., None],
    metadata: dict[str, Any],
) -> None:
    keys = {key: value for key, value in reduced(metadata).items() if key != "tokenizer.ggml.pre"}
    if pre is not None:
        keys["tokenizer.ggml.pre"] = pre
    # Words of several digits tell the rules apart; "123" is a token that no merge makes.
    keys["tokenizer.ggml.tokens"] = [*keys["tokenizer.ggml.tokens"], "12", "123", "Ġ1"]
    keys["tokenizer.ggml.token_type"] = [*keys["tokenizer.ggml.token_type"], 1, 1, 1]
    keys["tokenizer.ggml.merges"] = ["1 2", "Ġ 1", *keys["tokenizer.ggml.merges"]]
    tokenizer = open_with(write_gguf, tmp_path / "m.gguf", keys, arch)
    assert tokenizer is not None
    vocabulary = {token: i for i, token in enumerate(keys["tokenizer.ggml.tokens"])}
    for text in [*TEXTS, " 1", "123", "1234"]:
        composed = unicodedata.normalize("NFC", text) if pattern == QWEN2 else text
        words = regex.findall(pattern, composed)
        expected = plain_bpe(words, vocabulary, keys["tokenizer.ggml.merges"], whole=whole)
        assert tokenizer.encode(text, add_special_tokens=False) == expected, text
        assert tokenizer.decode(expected) == composed


def test_added_tokens_are_whole_and_only_control_tokens_are_special(
    tmp_path: Path, write_gguf: Callable[..., None], metadata: dict[str, Any]
) -> None:
    tokens = [*metadata["tokenizer.ggml.tokens"], "<think>", "<|ctl|>", "[PAD49154]"]
    keys = {
        **metadata,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [*metadata["tokenizer.ggml.token_type"], 4, 3, 5],
        "tokenizer.ggml.add_bos_token": True,
    }
    tokenizer = open_with(write_gguf, tmp_path / "m.gguf", keys)
    assert tokenizer is not None
    ids = tokenizer.encode("a<think>b<|ctl|>")
    assert ids == [
        1,
        *tokenizer.encode("a", add_special_tokens=False),
        49152,
        tokenizer.convert_tokens_to_ids("b"),
        49153,
    ]
    assert tokenizer.decode(ids, skip_special_tokens=True) == "a<think>b"
    assert 49154 not in tokenizer.encode("[PAD49154]")


SPM = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
PIECES = ["▁", "e", "t", "h", "a", "n", "o", "w", "r", "l", "d", "th", "the", "▁the", "he", "▁t", "an", "and"]
PIECES += ["▁a", "▁and", "wo", "or", "wor", "ld", "world", "▁wor", "▁world", "▁▁", "ll", "lo", "hel", "hell", "hello"]


def sentencepiece(text: str) -> list[int]:
    """SentencePiece's BPE by its description: again and again join the neighbours whose union scores best
    (the leftmost of equals); what is no piece falls back to its bytes."""
    index = {piece: i for i, piece in enumerate([*SPM, *PIECES])}
    symbols = list("▁" + text.replace(" ", "▁"))
    while True:
        unions = [(index[a + b], i) for i, (a, b) in enumerate(pairwise(symbols)) if a + b in index]
        if not unions:
            break
        _, at = min(unions)  # scores fall with the index
        symbols[at : at + 2] = [symbols[at] + symbols[at + 1]]
    ids: list[int] = []
    for symbol in symbols:
        ids += [index[symbol]] if symbol in index else [3 + byte for byte in symbol.encode()]
    return ids


def spm_keys(**more: Any) -> dict[str, Any]:
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [*SPM, *PIECES],
        "tokenizer.ggml.scores": [0.0] * len(SPM) + [-float(i) for i in range(len(PIECES))],
        "tokenizer.ggml.token_type": [2, 3, 3] + [6] * 256 + [1] * len(PIECES),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        **more,
    }


@pytest.mark.parametrize(
    "text", ["the world", "hello and the  world", "other hander", "thethe anand worldld", "é 日本 ths", "a\nb", "x"]
)
def test_a_sentencepiece_vocabulary_merges_by_score(text: str, tmp_path: Path, write_gguf: Callable[..., None]) -> None:
    tokenizer = open_with(write_gguf, tmp_path / "m.gguf", spm_keys())
    assert tokenizer is not None
    assert tokenizer.encode(text) == [1, *sentencepiece(text)]
    assert tokenizer.decode(sentencepiece(text)) == text


def test_ends_are_added_as_the_file_says(tmp_path: Path, write_gguf: Callable[..., None]) -> None:
    keys = spm_keys(**{"tokenizer.ggml.add_bos_token": False, "tokenizer.ggml.add_eos_token": True})
    tokenizer = open_with(write_gguf, tmp_path / "m.gguf", keys)
    assert tokenizer is not None
    assert tokenizer.encode("the") == [*sentencepiece("the"), 2]


def test_unsupported_tokenizers_are_refused_by_name(
    tmp_path: Path, write_gguf: Callable[..., None], metadata: dict[str, Any]
) -> None:
    with pytest.raises(
        CheckpointError, match=r"kind 't5', where gpt2 and llama can be read: set model\.tokenizer_path"
    ):
        open_with(write_gguf, tmp_path / "a.gguf", {**metadata, "tokenizer.ggml.model": "t5"})
    with pytest.raises(CheckpointError, match=r"tokenizer\.ggml\.pre 'tekken', where gpt-2"):
        open_with(write_gguf, tmp_path / "b.gguf", {**metadata, "tokenizer.ggml.pre": "tekken"})
    assert open_with(write_gguf, tmp_path / "c.gguf", {"tokenizer.ggml.model": "no_vocab"}) is None


def test_smollm2_ends_with_its_end_token(smollm2: Checkpoint, smollm: PreTrainedTokenizerBase) -> None:
    assert eos_token_ids(smollm2, smollm) == [2]
