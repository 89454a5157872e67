"""The contract of images and videos: what a processor makes of them on the host, and what a model takes.

Two halves, so that what crosses from one process to the other is small:

- A :class:`MediaProcessor` runs on threads of the process that answers clients. It *resizes* pictures and frames by
  the model's own rules, and says how a prompt with placeholders becomes one with a token for each feature row. It
  imports neither torch nor the model. ``factory(config, context)``, named by ``ModelSpec.processor``, builds one from
  config.json and a :class:`ProcessorContext`.
- The model (:meth:`pymllm.interfaces.Model.encode_media`) takes the resized pixels as bytes, normalizes them and cuts
  them into patches on its device, and gives one feature row for each of those tokens.

Rules of a processor:

- A prompt holds one placeholder token for each medium, as the chat template writes it. The i-th placeholder of a kind
  stands for the i-th medium of that kind.
- Methods may be called from several threads at once, keep nothing of a call, and leave their arguments unchanged.
- What a client can cause is a RequestError with one sentence: too many frames, an aspect ratio, a count that differs.

Shape letters: F frames, H and W pixels, T tokens of a prompt, C components.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from pymllm.interfaces.cache import MediaSpan

if TYPE_CHECKING:
    from torch import Tensor

MediaKind: TypeAlias = Literal["image", "video"]

Detail: TypeAlias = Literal["auto", "low", "high"]
"""OpenAI's ``detail`` of an image."""

Grid: TypeAlias = tuple[int, int, int]
"""Patches of a medium: in time, down and across. An image has one in time."""

Pixels: TypeAlias = npt.NDArray[np.uint8]

Times: TypeAlias = Sequence[float] | npt.NDArray[np.float64]
"""Seconds."""


@dataclass(frozen=True)
class ProcessorContext:
    """What a processor is built for.

    folder: of the checkpoint; its processor files (preprocessor_config.json and the like) may be missing.
    options: the model plugin's options, the configuration's ``model`` section.
    encode: text -> token ids, without special tokens added around it; None where the checkpoint has no tokenizer.
    """

    folder: Path
    options: Any = None
    encode: Callable[[str], Sequence[int]] | None = None


@dataclass(frozen=True, eq=False)
class ProcessedMedia:
    """A medium as the model takes it, but for the device.

    pixels: uint8 [F, H, W, 3], resized, C-contiguous; an image has F = 1, a video as many as its patches in time need.
    grid: patches. tokens: feature rows that the model makes of it, and tokens of a prompt that stand for them.
    settings: what beside the content decides the features: media of the same content digest and settings have the same
        ones, so ``content digest + settings`` is the key of a cache of features or KV.
    timestamps: seconds, one for each patch in time of a video.
    """

    kind: MediaKind
    pixels: Pixels
    grid: Grid
    tokens: int
    settings: bytes
    timestamps: tuple[float, ...] = ()


@dataclass(frozen=True)
class MediaRun:
    """Tokens [start, start + length) of a prompt stand for the rows [first, first + length) of a medium's features.

    media: which medium, its index in what :meth:`MediaProcessor.place` was given.
    """

    media: int
    start: int
    length: int
    first: int

    @property
    def end(self) -> int:
        """The token after the last."""
        return self.start + self.length

    def within(self, start: int, end: int) -> MediaRun | None:
        """Its part in the tokens [start, end), as a chunk of a prefill has it; None if there is none."""
        low, high = max(start, self.start), min(end, self.end)
        if low >= high:
            return None
        return MediaRun(self.media, low, high - low, self.first + low - self.start)

    def span(self, digest: bytes) -> MediaSpan:
        """For a cache key. digest: of the medium's content and settings."""
        return MediaSpan(self.start, self.length, digest + self.first.to_bytes(4, "little"))


@dataclass(frozen=True, eq=False)
class Placed:
    """A prompt whose placeholders are expanded.

    token_ids: T of them. runs: which stand for features, in the order of the prompt, none overlapping; together they
    cover every row of every medium once.
    positions: int32 [axes, T] for a model with several ``position_axes``, or None: every axis counts the tokens, which
    is so for every prompt without media.
    position_delta: the token at index i >= T, an answer's, has the position i + position_delta on every axis.
    """

    token_ids: list[int]
    runs: tuple[MediaRun, ...] = ()
    positions: npt.NDArray[np.int32] | None = None
    position_delta: int = 0


class MediaProcessor(ABC):
    """Base of every processor. max_tokens: no medium has more; more is refused."""

    max_tokens: int

    @abstractmethod
    def image(
        self, pixels: Pixels, *, min_pixels: int | None = None, max_pixels: int | None = None, detail: Detail = "auto"
    ) -> ProcessedMedia:
        """Resize a picture, uint8 [H, W, 3].

        min_pixels, max_pixels: bounds of height times width after resizing, in place of the checkpoint's; detail: as a
        client asked; "low" is a small picture, "high" and "auto" are all that the bounds allow.
        Raises RequestError for what the model cannot take.
        """

    @abstractmethod
    def video(
        self,
        frames: Pixels,
        timestamps: Times,
        *,
        min_pixels: int | None = None,
        max_pixels: int | None = None,
    ) -> ProcessedMedia:
        """Resize the frames of a video, uint8 [F, H, W, 3], shown at ``timestamps`` [F], in seconds.

        min_pixels, max_pixels: bounds of frames times height times width after resizing. Raises RequestError.
        """

    @abstractmethod
    def place(self, token_ids: Sequence[int], media: Sequence[ProcessedMedia]) -> Placed:
        """Expand the placeholders of a prompt. Raises RequestError where placeholders and media do not match."""


@dataclass(frozen=True, eq=False)
class MediaItem:
    """A medium for the model to encode. pixels: uint8 [F, H, W, 3] on its device; grid: patches; both as processed."""

    kind: MediaKind
    pixels: Tensor
    grid: Grid


@dataclass(frozen=True, eq=False)
class MediaRows:
    """The rows of a step that stand for features.

    rows: [M] int64, of the flat batch. A row stands there once; only rows whose results are not used (the padding of a
    step) may repeat. features: [M, media_width] of the activations' dtype, as :meth:`Model.encode_media` made them.
    """

    rows: Tensor
    features: Tensor


ProcessorFactory: TypeAlias = Callable[[Mapping[str, Any], ProcessorContext], MediaProcessor]
"""What ``ModelSpec.processor`` names. Raises CheckpointError for files that it cannot follow, naming them."""
