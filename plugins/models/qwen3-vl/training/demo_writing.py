"""Pictures and questions as sequences of tokens.

Shape letters: N pictures of a group, L tokens of a sequence, H and W pixels.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from tokenizers import Tokenizer
from torch import Tensor

UNIT = 32
"""Pixels of an image token, down as well as across."""

IGNORED = -100
"""The target where there is nothing to learn."""

CONVERSATIONS = 0.15
"""Of the pictures: their questions follow one another as the turns of one conversation."""

ROOM = 160
"""Tokens of a picture's questions, at most: all sequences of a step are padded to its longest."""

Text = npt.NDArray[np.int16]
Pixels = npt.NDArray[np.uint8]
Sample = tuple[Pixels, list[tuple[str, str]]]
"""A picture, and questions with their answers."""


class Group(NamedTuple):
    """Pictures that are resized alike, and a sequence for each.

    pixels: uint8 [N, H, W, 3]. text: int16 [6, N, L]; the first three of them are named below, the others are the
    positions of M-RoPE. All in one, because each tensor that comes from another process costs time.
    """

    pixels: Tensor
    text: Tensor

    @property
    def tokens(self) -> Tensor:
        """[N, L]."""
        return self.text[0]

    @property
    def targets(self) -> Tensor:
        """[N, L], the next token where it belongs to an answer."""
        return self.text[1]

    @property
    def segments(self) -> Tensor:
        """[N, L]; a token sees those before it that are of its own segment or of 0."""
        return self.text[2]

    @property
    def positions(self) -> Tensor:
        """[3, N, L]."""
        return self.text[3:]


def blank(count: int, length: int, pad: int) -> Text:
    """``Group.text`` of sequences that hold nothing yet."""
    fillers = np.array([pad, IGNORED, -1, 0, 0, 0], dtype=np.int16)
    return np.broadcast_to(fillers[:, None, None], (6, count, length)).copy()


class Writer:
    """Writes pictures and questions as the chat template does."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        [self._pad] = self._encode("<|endoftext|>")
        [self._image] = self._encode("<|image_pad|>")
        self._start = self._encode("<|im_start|>user\n<|vision_start|>")
        self._end = self._encode("<|vision_end|>")
        self._answer = self._encode("<|im_end|>\n<|im_start|>assistant\n")
        self._stop = self._encode("<|im_end|>")
        self._again = self._encode("\n<|im_start|>user\n")
        # The same questions come again and again; to tokenize one takes longer than to copy its tokens.
        self._turn = lru_cache(maxsize=1 << 16)(self._make_turn)

    def _encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text).ids

    def group(self, samples: Sequence[Sample], rng: np.random.Generator | None = None) -> Group:
        """All pictures must be of one size. rng: chooses which are conversations, and leaves out what there is no room
        for; None: neither."""
        pixels = np.stack([picture for picture, _ in samples])
        first = self._picture(pixels.shape[1] // UNIT, pixels.shape[2] // UNIT)
        chats = [rng is not None and rng.random() < CONVERSATIONS for _ in samples]
        turns = [
            [self._turn(*one, chat and number > 0) for number, one in enumerate(asked)]
            for (_, asked), chat in zip(samples, chats)
        ]
        if rng is not None:
            turns = [_fitting(parts) for parts in turns]
        begin, position = first.shape[1], int(first[-1, -1]) + 1
        length = begin + max(sum(turn.shape[1] for turn in row) for row in turns)
        text = blank(len(samples), length, self._pad)
        text[:, :, :begin] = first[:, None]
        for row, (parts, chat) in enumerate(zip(turns, chats)):
            at = begin
            for number, part in enumerate(parts):
                end = at + part.shape[1]
                text[:2, row, at:end] = part
                text[2, row, at:end] = 0 if chat else number + 1
                after = position + (at - begin if chat else 0)
                text[3:, row, at:end] = np.arange(after, after + end - at)
                at = end
        return Group(torch.from_numpy(pixels), torch.from_numpy(text))

    def _picture(self, down: int, across: int) -> Text:
        """What stands before the first question, [6, L]."""
        before = len(self._start)
        tokens = [*self._start, *[self._image] * (down * across), *self._end]
        text = blank(1, len(tokens), self._pad)[:, 0]
        text[0], text[2] = tokens, 0
        text[3:] = np.arange(len(tokens))
        place = np.arange(down * across)
        text[3:, before : len(tokens) - 1] = before + np.stack([0 * place, place // across, place % across])
        text[3:, -1] = before + max(down, across)
        return text

    def _make_turn(self, question: str, answer: str, again: bool) -> Text:
        """Tokens and targets of a question with its answer, [2, L]. again: it follows another one."""
        lead = [*(self._again if again else ()), *self._encode(question), *self._answer]
        told = [*self._encode(answer), *self._stop]
        targets = [*[IGNORED] * (len(lead) - 1), *told, IGNORED]
        return np.array([[*lead, *told], targets], dtype=np.int16)


def _fitting(turns: Sequence[Text]) -> list[Text]:
    """The first ones, as many as there is room for; one at least."""
    ends = accumulate(turn.shape[1] for turn in turns)
    return [turn for number, (turn, end) in enumerate(zip(turns, ends)) if end <= ROOM or number == 0]
