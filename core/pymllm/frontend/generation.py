"""The words of the frontend: what it is asked for, and what it answers while tokens arrive."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from pymllm.engine.messages import FinishReason, Media, MediaInput, TokenLogprobs

if TYPE_CHECKING:
    from pymllm.media import Reference

Prompt = str | list[int]
"""Text (tokenized with the model's special tokens) or token ids (taken as they are)."""


@dataclass(frozen=True, slots=True, eq=False)
class UnplacedPrompt:
    """Token ids with one placeholder for each picture or video, and the references to these: the i-th placeholder of
    a kind stands for the i-th reference of that kind."""

    token_ids: list[int]
    references: Sequence[Reference] = ()


@dataclass(frozen=True, slots=True, eq=False)
class PlacedPrompt:
    """Token ids with one token for each feature row, and what the engine must know of these (EngineRequest says what
    each field means); made by :meth:`pymllm.frontend.frontend.Frontend.place`."""

    token_ids: list[int]
    media: list[Media] = field(default_factory=list)
    inputs: list[MediaInput] = field(default_factory=list)
    positions: bytes = b""
    position_delta: int = 0


class Delta(msgspec.Struct):
    """News of one answer (``index`` below ``n``) of one prompt.

    text: new text; never half a character, never part of a stop string that may yet complete.
    token_ids, logprobs: the tokens that arrived, one logprobs entry each if asked for. A token's text may
    come in a later delta. prompt_logprobs: once, on the first delta of index 0.
    finish_reason: set on the last delta of this index, always exactly one. stop_reason: the stop string
    or token id that ended it, if one did. error: a sentence, with finish_reason "error".
    cached_tokens, queue_seconds: on the first delta of an index (as in TokenOutput).
    """

    index: int
    text: str = ""
    token_ids: list[int] = []
    logprobs: list[TokenLogprobs] | None = None
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    cached_tokens: int = 0
    queue_seconds: float = 0.0
    error: str | None = None

    def absorb(self, later: Delta) -> None:
        """Take in the next delta of the same answer: the two become one."""
        self.text += later.text
        self.token_ids += later.token_ids
        if later.logprobs is not None:
            self.logprobs = [*(self.logprobs or ()), *later.logprobs]
        if later.prompt_logprobs is not None:
            self.prompt_logprobs = later.prompt_logprobs
        self.finish_reason, self.stop_reason, self.error = later.finish_reason, later.stop_reason, later.error


DeltaSink = Callable[[Delta], None]
"""Receives deltas on the engine client's thread. It must be quick and must not raise."""
