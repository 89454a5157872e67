"""Streamed text equals a full decode, wherever the tokens cut the characters."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pymllm.frontend.detokenizer import Detokenizer, pieces

FAMILIES = ("byte_level", "byte_fallback", "metaspace")
TEXTS = (
    "hello the quick world",
    "  two leading spaces  and  more ",
    "héllo wörld é",
    "你好, 世界! 👩‍👩‍👧 🎉🎉",
    "▁literal and\ttabs\nand lines",
    "",
)


def full(tokenizer, ids, skip=True):
    """The reference: transformers' decode of all tokens at once."""
    return tokenizer.decode(ids, skip_special_tokens=skip, clean_up_tokenization_spaces=False)


@pytest.mark.parametrize("skip", [True, False])
@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("family", FAMILIES)
def test_streamed_text_is_the_full_decode(tokenizers, family, text, skip):
    tokenizer = tokenizers[family]
    special = tokenizer.eos_token_id
    ids = [special, *tokenizer(text)["input_ids"], special, special, *tokenizer(" the end")["input_ids"], special]
    detokenizer = Detokenizer(tokenizer)
    expected = full(tokenizer, ids, skip)
    assert "".join(pieces(detokenizer.stream(skip_special_tokens=skip), ids)) == expected
    assert detokenizer.decode(ids, skip_special_tokens=skip) == expected


@given(st.lists(st.integers(0, 287), max_size=60), st.booleans())
@settings(max_examples=300, deadline=None)
def test_any_tokens_of_a_byte_level_tokenizer_give_the_full_decode(tokenizers, ids, skip):
    tokenizer = tokenizers["byte_level"]
    parts = list(pieces(Detokenizer(tokenizer).stream(skip_special_tokens=skip), ids))
    assert "".join(parts) == full(tokenizer, ids, skip)


@given(st.text(st.characters(blacklist_categories=("Cs",), blacklist_characters="▁\x00"), max_size=30))
@settings(max_examples=300, deadline=None)
def test_any_text_through_a_sentencepiece_tokenizer_gives_the_full_decode(tokenizers, text):
    tokenizer = tokenizers["byte_fallback"]
    ids = tokenizer(text)["input_ids"]
    parts = list(pieces(Detokenizer(tokenizer).stream(), ids))
    assert "".join(parts) == full(tokenizer, ids)


@pytest.mark.parametrize("family", ["byte_level", "byte_fallback"])
def test_a_character_is_never_cut(tokenizers, family):
    tokenizer = tokenizers[family]
    text = "aé你👩‍👧🎉b"
    ids = tokenizer(text)["input_ids"]
    assert len(ids) > len(text)
    stream = Detokenizer(tokenizer).stream()
    said = ""
    for token in ids:
        said += stream.feed(token)
        assert text.startswith(said), "half a character was sent"
    assert said == text
    assert stream.finish() == ""


@pytest.mark.parametrize("family", ["byte_level", "byte_fallback"])
def test_an_unfinished_character_is_flushed_as_a_full_decode_would(tokenizers, family):
    tokenizer = tokenizers[family]
    ids = tokenizer("he🎉")["input_ids"][:-1]
    stream = Detokenizer(tokenizer).stream()
    said = "".join(stream.feed(token) for token in ids)
    assert said == "he"
    assert said + stream.finish() == full(tokenizer, ids)
    assert full(tokenizer, ids).endswith("\ufffd")


def test_a_genuine_replacement_character_survives(tokenizers):
    tokenizer = tokenizers["byte_level"]
    ids = tokenizer("a\ufffdb\ufffd")["input_ids"]
    assert "".join(pieces(Detokenizer(tokenizer).stream(), ids)) == "a\ufffdb\ufffd"


@pytest.mark.parametrize("family", FAMILIES)
def test_ids_that_no_token_has_are_no_text(tokenizers, family):
    tokenizer = tokenizers[family]
    padding = [len(tokenizer), len(tokenizer) + 1, 10**6]
    ids = tokenizer("the")["input_ids"]
    mixed = [padding[0], *ids, *padding, *tokenizer(" the")["input_ids"], padding[2]]
    text = "".join(pieces(Detokenizer(tokenizer).stream(), mixed))
    assert text == full(tokenizer, [*ids, *tokenizer(" the")["input_ids"]])
    assert Detokenizer(tokenizer).decode(mixed) == text


def test_added_tokens_are_plain_text_in_a_byte_level_vocabulary(tokenizers):
    import copy

    tokenizer = copy.deepcopy(tokenizers["byte_level"])
    tokenizer.add_tokens(["two words", "naïve", "中"])
    ids = tokenizer("a two words b naïve 中 é")["input_ids"]
    assert max(ids) >= 288
    assert "".join(pieces(Detokenizer(tokenizer).stream(), ids)) == full(tokenizer, ids)


@pytest.mark.parametrize("skip", [True, False])
def test_a_space_after_many_skipped_tokens_is_kept(tokenizers, skip):
    tokenizer = tokenizers["byte_fallback"]
    ids = [*tokenizer("hello")["input_ids"], *[tokenizer.eos_token_id] * 100, *tokenizer("world")["input_ids"]]
    text = "".join(pieces(Detokenizer(tokenizer).stream(skip_special_tokens=skip), ids))
    assert text == full(tokenizer, ids, skip)


@pytest.mark.parametrize("family", ["byte_level", "byte_fallback"])
def test_endless_invalid_bytes_cost_the_same_per_token_and_are_not_held_forever(tokenizers, family):
    tokenizer = tokenizers[family]
    token = tokenizer.convert_tokens_to_ids("ÿ" if family == "byte_level" else "<0xFF>")
    assert token is not None
    stream = Detokenizer(tokenizer).stream()

    def cost(tokens):
        start = time.perf_counter()
        text = "".join(stream.feed(token) for _ in range(tokens))
        return time.perf_counter() - start, text

    first, text = cost(2000)
    assert len(text) > 1900
    assert set(text) == {"\ufffd"}
    cost(16000)
    later, _ = cost(2000)
    assert later < 5 * first + 0.05
