"""The state of a terminal chat, and the commands that change it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pymllm.cli.chat_backends import ChatBackend
from pymllm.errors import RequestError
from pymllm.sampling import SamplingParams
from pymllm.spelling import did_you_mean

HELP = """\
/help                 this list
/system TEXT          set the system message (without TEXT: remove it)
/set temperature=0.2  set a sampling value, any field of SamplingParams (without one: show; "name=": unset)
/image FILE [TEXT]    attach a picture to the next message, or to TEXT, which is sent
/video FILE [TEXT]    the same with a video
/regen                answer the last message again
/reset                forget the conversation
/save FILE            write the conversation as JSON
/quit                 leave (also Ctrl-D)
Ctrl-C stops an answer. A line that ends with \\ goes on in the next one; so does all between two lines of \"\"\".
A message that starts with / is written with two: //"""

NOT_SETTABLE = ("n", "logit_bias", "logprobs", "prompt_logprobs")
"""Sampling fields that have no effect in a chat or no short form."""


@dataclass
class Footer:
    """What is said about an answer when it is complete; seconds."""

    tokens: int = 0
    prompt: int | None = None
    cached: int | None = None
    first: float = 0.0
    seconds: float = 0.0

    def __str__(self) -> str:
        """For example: 42 tokens, 31.2 tok/s, first after 0.21 s, 96 of 120 prompt tokens cached"""
        parts = [f"{self.tokens} tokens"]
        if self.tokens > 1 and self.seconds > 0:
            parts.append(f"{(self.tokens - 1) / self.seconds:.1f} tok/s")
        if self.tokens:
            parts.append(f"first after {self.first:.2f} s")
        if self.prompt is not None and self.cached is not None:
            parts.append(f"{self.cached} of {self.prompt} prompt tokens cached")
        return ", ".join(parts)


class ChatSession:
    """messages: without the system message, alternating user and assistant. attached: content parts that go with the
    next message. settings: SamplingParams fields."""

    def __init__(self, backend: ChatBackend, *, system: str | None = None) -> None:
        self._backend = backend
        self.system = system or None
        self.messages: list[dict[str, Any]] = []
        self.attached: list[dict[str, Any]] = []
        self.settings: dict[str, Any] = {}
        self.footer = Footer()

    def say(self, text: str) -> Iterator[str]:
        """Add a user message and stream the answer, which joins the conversation.

        Closing the iterator stops the answer; what was said so far stays. If nothing was said, because of
        that or because of a PymllmError, the conversation is as it was before, without what was attached.
        """
        attached, self.attached = self.attached, []
        content: Any = [*attached, {"type": "text", "text": text}] if attached else text
        return self._answer([*self.messages, {"role": "user", "content": content}])

    def regenerate(self) -> Iterator[str]:
        """Stream another answer in place of the last one. Raises RequestError if nothing was said yet."""
        if not self.messages:
            raise RequestError("there is nothing to answer again")
        return self._answer(self.messages[:-1])

    def _answer(self, messages: list[dict[str, Any]]) -> Iterator[str]:
        said: list[str] = []
        complete = False
        try:
            with closing(self._stream(messages)) as pieces:  # type: ignore[type-var]
                for text in pieces:
                    said.append(text)
                    yield text
            complete = True
        finally:
            if said or complete:
                self.messages = [*messages, {"role": "assistant", "content": "".join(said)}]

    def _stream(self, messages: list[dict[str, Any]]) -> Iterator[str]:
        footer = self.footer = Footer()
        system = [{"role": "system", "content": self.system}] if self.system else []
        start, first = time.perf_counter(), None
        params = SamplingParams(**self.settings)
        with closing(self._backend.reply([*system, *messages], params)) as pieces:  # type: ignore[type-var]
            for piece in pieces:
                footer.prompt = piece.prompt if piece.prompt is not None else footer.prompt
                footer.cached = piece.cached if piece.cached is not None else footer.cached
                footer.tokens = piece.total if piece.total is not None else footer.tokens + piece.tokens
                if piece.tokens:
                    now = time.perf_counter()
                    first = first or now
                    footer.first, footer.seconds = first - start, now - first
                if piece.text:
                    yield piece.text

    def set(self, assignment: str) -> str:
        """Carry out ``/set``; returns what to say. Raises RequestError for a value that is not allowed."""
        if not assignment:
            return ", ".join(f"{name}={value}" for name, value in self.settings.items()) or "nothing is set"
        name, separator, text = (part.strip() for part in assignment.partition("="))
        known = sorted(set(SamplingParams.__struct_fields__) - {*NOT_SETTABLE})
        if separator and name not in known and (hint := did_you_mean(name, known)):
            raise RequestError(f"there is no sampling value '{name}'.{hint}")
        if name not in known or not separator:
            raise RequestError(f"write /set NAME=VALUE, where NAME is one of {', '.join(known)}")
        changed = {key: value for key, value in self.settings.items() if key != name}
        if text:
            changed[name] = _value(text)
        SamplingParams(**changed)
        self.settings = changed
        return f"{name} is {changed[name]!r}" if text else f"{name} is not set"

    def reset(self) -> None:
        """Forget the conversation; the system message and the settings stay."""
        self.messages, self.attached = [], []

    def save(self, file: str) -> str:
        """Write the conversation as JSON; returns what to say. Raises RequestError if that is not possible."""
        if not file:
            raise RequestError("write /save FILE")
        system = [{"role": "system", "content": self.system}] if self.system else []
        content = {"model": self._backend.name, "settings": self.settings, "messages": [*system, *self.messages]}
        try:
            with Path(file).expanduser().open("x", encoding="utf-8") as writer:
                json.dump(content, writer, ensure_ascii=False, indent=2)
        except FileExistsError:
            raise RequestError(f"'{file}' exists; choose another name") from None
        except OSError as error:
            raise RequestError(f"'{file}' cannot be written: {error.strerror}") from error
        return f"saved to {file}"


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
