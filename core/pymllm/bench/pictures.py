"""Prompts about pictures for the benchmark of one batch, of any length: what is padded or cut is text alone."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import msgspec
import numpy as np
import torch

from pymllm.config import Config
from pymllm.engine.assemble import Assembled
from pymllm.engine.messages import MediaInput
from pymllm.errors import ConfigError, RequestError
from pymllm.frontend.chat import render_chat
from pymllm.frontend.generation import PlacedPrompt, UnplacedPrompt
from pymllm.frontend.launch import media_placer
from pymllm.frontend.parts import Parts
from pymllm.interfaces import MediaItem


class Pictures:
    """A question about picture files, as the chat template writes it. Every prompt gets pictures of its own, which
    differ in a few bytes, so that none is encoded for another."""

    def __init__(self, config: Config, parts: Assembled, files: Sequence[Path], text: str) -> None:
        """Raises ConfigError: the model takes no pictures or has no chat template, or a file cannot be read."""
        from pymllm.checkpoint import open_checkpoint
        from pymllm.frontend.tokenizer import load_tokenizer

        checkpoint = open_checkpoint(config.model)
        tokenizer = load_tokenizer(checkpoint, config.model)
        self._placer = media_placer(config, checkpoint, parts.info, tokenizer)
        if self._placer is None:
            raise ConfigError(f"{parts.info.model} takes no images: leave --image out")
        content = [{"type": "image", "image": str(file)} for file in files]
        message = {"role": "user", "content": [*content, {"type": "text", "text": text}]}
        read = Parts(media=True, offline=True)
        try:
            self._ids = render_chat(tokenizer, [message], parts=read)
            self._references = read.references
            self._whole = self._place(self._ids)
        except RequestError as error:
            sentence = str(error)
            for index, file in enumerate(files):
                sentence = sentence.replace(f"messages[0].content[{index}]", str(file))
            raise ConfigError(f"--image: {sentence}") from error
        self._vocab_size = parts.info.vocab_size
        self._prompt = lru_cache(self._of_length)

    @property
    def natural_length(self) -> int:
        """Tokens of the prompt as it was given."""
        return len(self._whole.token_ids)

    @property
    def tokens(self) -> int:
        """Feature rows of a prompt's pictures."""
        return sum(medium.tokens for medium in self._whole.inputs)

    def prompt(self, length: int, number: int) -> PlacedPrompt:
        """Prompt ``number``, of ``length`` tokens. Raises ConfigError where the pictures alone have more."""
        base = self._prompt(length)
        inputs = [_varied(medium, number) for medium in base.inputs]
        digest = number.to_bytes(8, "little")
        media = [msgspec.structs.replace(run, digest=run.digest + digest) for run in base.media]
        return replace(base, inputs=inputs, media=media)

    def _of_length(self, length: int) -> PlacedPrompt:
        missing = length - self.natural_length
        if missing >= 0:
            rng = random.Random(length)
            most = min(self._ids)  # ids that are text for sure: the ordinary ones come first
            return self._place([*self._ids, *(rng.randrange(max(1, most)) for _ in range(missing))])
        last = max(run.start + run.length for run in self._whole.media)
        if length <= last:
            raise ConfigError(f"--input-len {length} leaves no text after the pictures, which end at token {last}")
        return self._place(self._ids[:missing])

    def _place(self, ids: list[int]) -> PlacedPrompt:
        assert self._placer is not None, "a model that takes pictures has one"
        return asyncio.run(self._placer.place(UnplacedPrompt(ids, self._references)))


def items(prompts: Sequence[PlacedPrompt], device: torch.device) -> list[MediaItem]:
    """The pictures of prompts, on the device."""
    media = [medium for prompt in prompts for medium in prompt.inputs]
    return [
        MediaItem(
            each.kind,
            torch.from_numpy(np.frombuffer(each.pixels, np.uint8).reshape(each.shape).copy()).to(device),
            each.grid,
        )
        for each in media
    ]


def _varied(medium: MediaInput, number: int) -> MediaInput:
    """The medium with other bytes in its first pixels, and a digest that says so."""
    mark = number.to_bytes(8, "little")
    return msgspec.structs.replace(medium, pixels=mark + medium.pixels[8:], digest=medium.digest + mark)
