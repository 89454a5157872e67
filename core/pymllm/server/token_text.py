"""The text and the bytes of single tokens, for log-probabilities and /tokenize."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pymllm.frontend.detokenizer import byte_alphabet

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class TokenTexts:
    """What each token stands for. Without a tokenizer a token is spelled ``token_id:7``, as vLLM does."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase | None) -> None:
        self._tokenizer = tokenizer
        self._alphabet = byte_alphabet()
        self._added: dict[int, str] = {}
        self.special: frozenset[int] = frozenset()
        self._byte_level = False
        self._bytes: dict[int, bytes] = {}
        if tokenizer is not None:
            self._added = {id: str(token) for id, token in tokenizer.added_tokens_decoder.items()}
            self.special = frozenset(id for id, token in tokenizer.added_tokens_decoder.items() if token.special)
            self._byte_level = _decodes_bytes(tokenizer)

    def piece(self, token: int) -> str:
        """The vocabulary's own spelling, such as "Ġthe" or "▁the"."""
        if self._tokenizer is None:
            return f"token_id:{token}"
        found = self._tokenizer.convert_ids_to_tokens(token)
        return found if isinstance(found, str) else ""

    def utf8(self, token: int) -> bytes:
        """The UTF-8 bytes, which may be part of a character only."""
        data = self._bytes.get(token)
        if data is None:
            data = self._bytes[token] = self._spell(token)
        return data

    def text(self, token: int) -> str:
        r"""The text; bytes that are no text are spelled ``bytes:\xf0\x9f``, as OpenAI does, so that tokens
        stay distinct."""
        data = self.utf8(token)
        try:
            return data.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)

    def _spell(self, token: int) -> bytes:
        if token in self._added:
            return self._added[token].encode()
        piece = self.piece(token)
        if self._tokenizer is None:
            return piece.encode()
        if self._byte_level and all(character in self._alphabet for character in piece):
            return bytes(self._alphabet[character] for character in piece)
        byte = _BYTE_PIECE.fullmatch(piece)
        if byte is not None:
            return bytes.fromhex(byte[1])
        return piece.replace("▁", " ").encode()


def _decodes_bytes(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether the vocabulary is spelled in the byte-level alphabet: its space is then "Ġ"."""
    space = tokenizer.convert_tokens_to_ids("Ġ")
    return isinstance(space, int) and space != tokenizer.unk_token_id
