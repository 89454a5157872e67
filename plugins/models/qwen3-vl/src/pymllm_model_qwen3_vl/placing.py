"""From a prompt with a placeholder for each medium to one with a token for each feature row, and its positions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pymllm.errors import RequestError
from pymllm.interfaces import MediaRun, Placed, ProcessedMedia
from pymllm_model_qwen3_vl.sizes import integer

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Tokens:
    """Ids of the tokens that have to do with media. image, video: placeholders. start, end: around features."""

    image: int
    video: int
    start: int
    end: int

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> Tokens:
        """From config.json. Raises CheckpointError."""
        names = ("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id")
        return cls(*(integer(config, name) for name in names))


class Placing:
    """Expands prompts. encode: text to tokens, for the timestamps of videos, or None."""

    def __init__(self, tokens: Tokens, merge: int, encode: Callable[[str], Sequence[int]] | None) -> None:
        self._tokens = tokens
        self._merge = merge
        self._encode = encode

    def __call__(self, token_ids: Sequence[int], media: Sequence[ProcessedMedia]) -> Placed:
        """See :meth:`pymllm.interfaces.MediaProcessor.place`."""
        prompt = np.asarray(token_ids, dtype=np.int64)
        spots = np.flatnonzero((prompt == self._tokens.image) | (prompt == self._tokens.video))
        indices = self._matched(prompt[spots] == self._tokens.video, media)
        if not indices:
            return Placed(list(token_ids))
        expanded = _Expanded()
        done = 0
        for spot, index in zip(spots.tolist(), indices):
            expanded.text(prompt[done:spot])
            self._add(expanded, index, media[index])
            done = spot + 1
        expanded.text(prompt[done:])
        return expanded.placed()

    def _matched(self, videos: npt.NDArray[np.bool_], media: Sequence[ProcessedMedia]) -> list[int]:
        """The medium of each placeholder. videos: whether it is a video's."""
        images = [index for index, medium in enumerate(media) if medium.kind == "image"]
        clips = [index for index, medium in enumerate(media) if medium.kind == "video"]
        wanted = int((~videos).sum()), int(videos.sum())
        if wanted != (len(images), len(clips)):
            raise RequestError(
                f"the prompt has placeholders of {wanted[0]} images and {wanted[1]} videos, but there are "
                f"{len(images)} images and {len(clips)} videos"
            )
        rest = iter(images), iter(clips)
        return [next(rest[int(is_video)]) for is_video in videos]

    def _add(self, expanded: _Expanded, index: int, medium: ProcessedMedia) -> None:
        """An image is one run of features; a video one for each patch in time, with its time before it."""
        time, height, width = medium.grid
        rows = (height // self._merge, width // self._merge)
        if medium.kind == "image":
            expanded.features(self._tokens.image, index, 0, rows)
            return
        if self._encode is None:
            raise RequestError("the checkpoint has no tokenizer, which the timestamps of a video need")
        for i in range(time):
            label = self._encode(f"<{medium.timestamps[i]:.1f} seconds>")
            expanded.text(np.array([*label, self._tokens.start]))
            expanded.features(self._tokens.video, index, i * rows[0] * rows[1], rows)
            expanded.text(np.array([self._tokens.end]))


class _Expanded:
    """The expanded prompt so far, in pieces. Text counts positions on all axes alike; the features of a picture stand
    at one time, and at their row and column below and beside it (Qwen2-VL, section 2.1)."""

    def __init__(self) -> None:
        self._tokens: list[Integers] = []
        self._positions: list[Integers] = []
        self._runs: list[MediaRun] = []
        self._count = 0
        self._next = 0

    def text(self, tokens: Integers) -> None:
        steps = np.arange(self._next, self._next + len(tokens))
        self._append(tokens, np.broadcast_to(steps, (3, len(tokens))), len(tokens))

    def features(self, token: int, media: int, first: int, size: tuple[int, int]) -> None:
        count = size[0] * size[1]
        self._runs.append(MediaRun(media, self._count, count, first))
        places = np.stack([np.zeros(count, np.int64), *(axis.ravel() for axis in np.indices(size))])
        self._append(np.full(count, token), self._next + places, max(size))

    def _append(self, tokens: Integers, positions: Integers, taken: int) -> None:
        self._tokens.append(tokens)
        self._positions.append(positions)
        self._count += len(tokens)
        self._next += taken

    def placed(self) -> Placed:
        return Placed(
            token_ids=np.concatenate(self._tokens).tolist(),
            runs=tuple(self._runs),
            positions=np.concatenate(self._positions, axis=1).astype(np.int32),
            # Features take fewer positions than tokens: the answer goes on after the largest one.
            position_delta=self._next - self._count,
        )
