"""``pymllm run --prompt``: one answer, streamed to standard output."""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pymllm.errors import RequestError

if TYPE_CHECKING:
    from pymllm.config import Config
    from pymllm.frontend.generation import Delta, PlacedPrompt
    from pymllm.llm import LLM
    from pymllm.sampling import SamplingParams


def answer_one(config: Config, args: argparse.Namespace, params: SamplingParams) -> int:
    """Print the answer while it grows, then one line of statistics on standard error.

    Returns 1 if the answer failed. Raises PymllmError, and KeyboardInterrupt after the request was aborted.
    """
    from pymllm.llm import LLM

    prompt = sys.stdin.read() if args.prompt == "-" else args.prompt
    with LLM.from_config(config, progress=not args.quiet and sys.stderr.isatty()) as llm:
        start = time.perf_counter()
        placed = _prompt(llm, prompt, args)
        deltas = llm.stream(placed, params)
        timing = Timing(len(placed.token_ids), start)
        try:
            for delta in deltas:
                timing.add(delta)
                sys.stdout.write(delta.text)
                sys.stdout.flush()
        finally:
            print(flush=True)
        if timing.error is not None:
            print(f"pymllm: the answer failed: {timing.error}", file=sys.stderr)
            return 1
        if not args.quiet:
            print(timing.summary(), file=sys.stderr)
    return 0


def _prompt(llm: LLM, prompt: str, args: argparse.Namespace) -> PlacedPrompt:
    """A chat message, media before its text, where the model has a template. Raises RequestError."""
    images, videos = args.image or [], args.video or []
    templated = llm.tokenizer is not None and bool(llm.tokenizer.chat_template)
    if args.raw or (not templated and args.system is None):
        return llm.place({"prompt": prompt, "images": images, "videos": videos})
    media = [*({"type": "image", "image": one} for one in images), *({"type": "video", "video": one} for one in videos)]
    content: Any = [*media, {"type": "text", "text": prompt}] if media else prompt
    messages: list[dict[str, Any]] = [{"role": "user", "content": content}]
    if args.system is not None:
        messages.insert(0, {"role": "system", "content": args.system})
    try:
        return llm.read_chat(messages)
    except RequestError as error:
        sentence = str(error)
        for place, file in enumerate([*images, *videos]):
            sentence = sentence.replace(f"messages[{len(messages) - 1}].content[{place}]", file)
        raise RequestError(sentence, error.field) from error


@dataclass
class Timing:
    """How fast one answer came; seconds of time.perf_counter(). start: when it was asked for."""

    prompt_tokens: int
    start: float
    tokens: int = 0
    cached: int = 0
    first: float | None = None
    last: float = 0.0
    finish_reason: str | None = None
    error: str | None = None

    def add(self, delta: Delta) -> None:
        """Note what arrived, now."""
        self.last = time.perf_counter()
        if self.first is None and delta.token_ids:
            self.first, self.cached = self.last, delta.cached_tokens
        self.tokens += len(delta.token_ids)
        self.finish_reason, self.error = delta.finish_reason, delta.error

    @property
    def first_seconds(self) -> float:
        """Time to the first token."""
        return (self.first or self.last or self.start) - self.start

    @property
    def tokens_per_second(self) -> float:
        """Of the tokens after the first, which belongs to the prompt's computation; 0 if there are none."""
        seconds = self.last - (self.first or self.last)
        return (self.tokens - 1) / seconds if self.tokens > 1 and seconds > 0 else 0.0

    def summary(self) -> str:
        """One line for a person."""
        return (
            f"[{self.prompt_tokens} prompt tokens, {self.cached} cached; {self.tokens} new tokens, "
            f"{self.tokens_per_second:.1f} tok/s, first after {self.first_seconds:.2f} s; {self.finish_reason}]"
        )
