"""Incremental detokenization: token ids in, text out, never half a character.

Two decoders give the same answers as ``tokenizer.decode`` of all tokens at once:

- Byte-level tokenizers (GPT-2's alphabet: Llama 3, Qwen, SmolLM ...) name the bytes of every token, so a
  table and an incremental UTF-8 decoder are exact and cost O(1) a token.
- All others (SentencePiece and its like) are decoded in a short window: the text of the last settled
  tokens is compared with the text of them and the new ones, so that whatever the decoder does at the
  start of a text (drop a space, for instance) happens in both and cancels out.

Unlike ``tokenizers.decoders.DecodeStream`` both stay O(1) a token on endless invalid UTF-8, ignore ids that
no token has, and give up what they hold at the end.
"""

from __future__ import annotations

import codecs
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

REPLACEMENT = "\ufffd"

MAX_HELD_TOKENS = 32
"""A window gives up its text, complete or not, once so many tokens have not settled it. An unfinished
character is at most 3 bytes, so only a text that is not UTF-8 at all comes so far."""


class TokenStream(ABC):
    """The state of one answer."""

    @abstractmethod
    def feed(self, token: int) -> str:
        """Add a token; returns the text that is now certain, perhaps none."""

    @abstractmethod
    def finish(self) -> str:
        """The text held back: U+FFFD for an unfinished character, as in a full decode."""


class Detokenizer:
    """Turns token ids into text with one tokenizer, whole or as a stream.

    Ids that no token has (rows that only pad the embedding) have no text.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        backend = getattr(tokenizer, "backend_tokenizer", None)
        self._backend: Any = backend if hasattr(backend, "get_added_tokens_decoder") else None
        self._bytes = _ByteTable(self._backend) if self._backend is not None and _is_byte_level(self._backend) else None
        self._known = len(tokenizer)

    def decode(self, ids: list[int], *, skip_special_tokens: bool = True) -> str:
        """The text of all tokens at once, spaces as the tokens have them."""
        if self._backend is not None:
            text: str = self._backend.decode(ids, skip_special_tokens=skip_special_tokens)
            return text
        known = [token for token in ids if token < self._known]
        decoded = self._tokenizer.decode(
            known, skip_special_tokens=skip_special_tokens, clean_up_tokenization_spaces=False
        )
        return str(decoded)

    def stream(self, *, skip_special_tokens: bool = True) -> TokenStream:
        """A new answer's state."""
        if self._bytes is not None:
            return _ByteStream(self._bytes, skip_special_tokens)
        return _WindowStream(lambda ids: self.decode(ids, skip_special_tokens=skip_special_tokens))


def _is_byte_level(backend: Any) -> bool:
    """Whether a fast tokenizer decodes by the byte-level alphabet and nothing else."""
    if backend.decoder is None:
        return False
    decoder = json.loads(backend.decoder.__getstate__())
    parts = decoder.get("decoders", []) if decoder.get("type") == "Sequence" else [decoder]
    return len(parts) == 1 and parts[0].get("type") == "ByteLevel"


def byte_alphabet() -> dict[str, int]:
    """The character that stands for each byte in byte-level vocabularies (Radford et al. 2019, GPT-2):
    printable Latin-1 characters stand for themselves, the other bytes for U+0100 and up, in order."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


class _ByteTable:
    """Bytes of each token of a byte-level tokenizer, filled on first use and shared by all answers; and the text of
    those tokens that are whole characters."""

    def __init__(self, backend: Any) -> None:
        self._backend = backend
        self._alphabet = byte_alphabet()
        self._bytes: dict[int, bytes] = {}
        self.texts: dict[int, str] = {}
        self.special = frozenset(id for id, token in backend.get_added_tokens_decoder().items() if token.special)

    def __getitem__(self, token: int) -> bytes:
        data = self._bytes.get(token)
        if data is None:
            data = self._bytes[token] = self._spell(self._backend.id_to_token(token))
            with suppress(UnicodeDecodeError):
                self.texts[token] = data.decode()
        return data

    def _spell(self, name: str | None) -> bytes:
        if name is None:
            return b""
        try:
            return bytes(self._alphabet[character] for character in name)
        except KeyError:  # an added token with a character outside the alphabet is plain text
            return name.encode()


class _ByteStream(TokenStream):
    """held: the first bytes of a character that is not complete yet."""

    def __init__(self, table: _ByteTable, skip_special_tokens: bool) -> None:
        self._table = table
        self._skip: frozenset[int] = table.special if skip_special_tokens else frozenset()
        self._held = b""

    def feed(self, token: int) -> str:
        if token in self._skip:
            return ""
        if not self._held:
            text = self._table.texts.get(token)
            if text is not None:
                return text
        data = self._held + self._table[token]
        text, used = codecs.utf_8_decode(data, "replace", False)
        self._held = data[used:]
        return text

    def finish(self) -> str:
        text, self._held = self._held.decode(errors="replace"), b""
        return text


class _WindowStream(TokenStream):
    """tokens: the window; its first ``settled`` tokens give ``context``, which was handed out before."""

    def __init__(self, decode: Callable[[list[int]], str]) -> None:
        self._decode = decode
        self._tokens: list[int] = []
        self._settled = 0
        self._context = ""

    def feed(self, token: int) -> str:
        self._tokens.append(token)
        text = self._decode(self._tokens)
        unsettled = text.endswith(REPLACEMENT) or len(text) <= len(self._context)
        if unsettled and len(self._tokens) - self._settled < MAX_HELD_TOKENS:
            return ""
        return self._settle(text)

    def finish(self) -> str:
        return self._settle(self._decode(self._tokens)) if len(self._tokens) > self._settled else ""

    def _settle(self, text: str) -> str:
        """Hand out the new part of the window's text; the new tokens become the context of the next ones."""
        held = self._tokens[self._settled :]
        alone = self._decode(held)
        # Some decoders rewrite earlier text (a byte run that turns out invalid): what was said stays said.
        new = text[len(self._context) :] if text.startswith(self._context) else alone
        if new:
            self._tokens, self._context, self._settled = held, alone, len(held)
        else:
            del self._tokens[self._settled :]
        return new


def pieces(stream: TokenStream, tokens: list[int]) -> Iterator[str]:
    """The text of each token in turn, then what was held back. For whole answers and tests."""
    for token in tokens:
        yield stream.feed(token)
    yield stream.finish()
