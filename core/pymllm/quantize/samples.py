"""Calibration samples as the arguments of transformers' model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pymllm.checkpoint import Checkpoint
from pymllm.errors import ConfigError
from pymllm.interfaces.compression import Compression
from pymllm.quantize.calibration import Messages


class SampleSet:
    """A dataset for PyTorch's DataLoader: each sample is a dict of tensors [1, L] and whatever pictures bring.

    length: tokens of a text sample, at most; several short texts become one sample, as long ones are cut.
    """

    def __init__(
        self,
        samples: Sequence[str | Messages],
        checkpoint: Checkpoint,
        tokenizer: Any,
        compression: Compression,
        *,
        length: int,
        count: int,
    ) -> None:
        """Raises ConfigError for pictures that the model does not take."""
        # The checkpoint may have a file mapped into memory, and llmcompressor copies its dataset.
        self._folder, self._config = checkpoint.path, checkpoint.config
        self._tokenizer, self._compression = tokenizer, compression
        texts = [sample for sample in samples if isinstance(sample, str)]
        chats = [sample for sample in samples if not isinstance(sample, str)]
        items: list[list[int] | Messages] = []
        items += self._windows(texts, length)
        items += chats
        self._items = items[:count]
        if not self._items:
            raise ConfigError("the calibration data holds no text")
        for chat in chats:
            if compression.sample is None and any(not isinstance(message["content"], str) for message in chat):
                raise ConfigError("--calib: this model takes no images, give text or messages of text")

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, index: int) -> dict[str, Any]:
        import torch

        item = self._items[index]
        if item and isinstance(item[0], int):
            ids = torch.tensor([item])
            return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        messages: Any = item
        if self._compression.sample is not None:
            return self._compression.sample(self._folder, self._config, self._tokenizer, _decoded(messages))
        text = self._tokenizer.apply_chat_template(messages, tokenize=False)
        return dict(self._tokenizer(text, return_tensors="pt", add_special_tokens=False))

    def _windows(self, texts: Sequence[str], length: int) -> list[list[int]]:
        ids: list[int] = []
        for text in texts:
            ids += self._tokenizer(text)["input_ids"]
        whole = [ids[first : first + length] for first in range(0, len(ids), length)]
        return [window for window in whole if len(window) > length // 2 or window is whole[0]]


def _decoded(messages: Messages) -> Messages:
    from PIL import Image

    def part(one: dict[str, Any]) -> dict[str, Any]:
        file = one.get("image")
        return {**one, "image": Image.open(file).convert("RGB")} if isinstance(file, Path) else one

    return [
        {**message, "content": content if isinstance(content, str) else [part(one) for one in content]}
        for message in messages
        for content in [message["content"]]
    ]
