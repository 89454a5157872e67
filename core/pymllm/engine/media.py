"""Features of images and videos: encoded once, kept on the device while there is room."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from pymllm.engine.messages import Media, MediaInput
from pymllm.engine.plan import StepItem
from pymllm.engine.request import Phase, Request
from pymllm.interfaces.media import MediaItem, MediaRows
from pymllm.interfaces.model import Model


def runs_within(item: StepItem) -> Iterator[Media]:
    """The parts of a request's media runs that a step's item computes."""
    end = item.start + item.count
    for run in item.request.spec.media:
        low, high = max(item.start, run.start), min(end, run.start + run.length)
        if low < high:
            yield Media(low, high - low, run.digest, run.item, run.first + low - run.start)


def has_media(item: StepItem) -> bool:
    """Whether an item computes tokens that stand for an image or video."""
    return next(runs_within(item), None) is not None


@dataclass
class Entry:
    """Features [tokens, media_width], and up to which token each request needs them."""

    features: Tensor
    needed: dict[Request, int] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Of the features."""
        return self.features.numel() * self.features.element_size()

    @property
    def in_use(self) -> bool:
        """Whether a running request has tokens left that need them."""
        self.needed = {r: end for r, end in self.needed.items() if r.phase is Phase.running and r.computed < end}
        return bool(self.needed)


class MediaStore:
    """Encodes what steps need, all media of a step together, and keeps the features by digest: the least recently used
    are dropped first, those that a running request still needs never.

    capacity: bytes that may be kept. most_tokens: feature rows that are encoded at a time, unless one medium has more.
    """

    def __init__(self, model: Model, device: torch.device, *, capacity: int, most_tokens: int) -> None:
        self._model = model
        self._device = device
        self._capacity = capacity
        self._most_tokens = most_tokens
        self._entries: OrderedDict[bytes, Entry] = OrderedDict()
        self.encoded = 0

    def knows(self, digest: bytes) -> bool:
        """Whether features are kept under a digest."""
        return digest in self._entries

    def clear(self) -> None:
        """Drop all features."""
        self._entries.clear()

    def rows(self, items: Sequence[StepItem]) -> MediaRows | None:
        """Which rows of a step stand for features, and those features; None if no item has any. Encodes what is
        missing. Raises what the model raises."""
        parts = list(_parts(items))
        if not parts:
            return None
        self._encode_missing([_input(item, run) for item, run, _ in parts])
        for item, run, _ in parts:
            self._note(item.request, run)
        found = [
            self._entries[_input(i, run).digest].features[run.first : run.first + run.length] for i, run, _ in parts
        ]
        rows = np.concatenate([np.arange(row, row + run.length) for _, run, row in parts])
        self._drop()
        return MediaRows(self._to_device(torch.from_numpy(rows)), torch.cat(found) if len(found) > 1 else found[0])

    def _note(self, request: Request, run: Media) -> None:
        digest = request.spec.inputs[run.item].digest
        self._entries.move_to_end(digest)
        last = max(each.start + each.length for each in request.spec.media if each.item == run.item)
        self._entries[digest].needed[request] = last

    def _encode_missing(self, inputs: Sequence[MediaInput]) -> None:
        missing = {each.digest: each for each in inputs if each.digest not in self._entries}
        for group in _groups(list(missing.values()), self._most_tokens):
            media = [MediaItem(each.kind, self._pixels(each), each.grid) for each in group]
            for each, features in zip(group, self._model.encode_media(media)):
                self._entries[each.digest] = Entry(features)
                self.encoded += 1

    def _pixels(self, each: MediaInput) -> Tensor:
        cuda = self._device.type == "cuda"
        pixels = torch.empty(each.shape, dtype=torch.uint8, pin_memory=cuda)
        pixels.numpy()[:] = np.frombuffer(each.pixels, dtype=np.uint8).reshape(each.shape)
        return pixels.to(self._device, non_blocking=True)

    def _to_device(self, tensor: Tensor) -> Tensor:
        return tensor.pin_memory().to(self._device, non_blocking=True) if self._device.type == "cuda" else tensor

    def _drop(self) -> None:
        used = sum(entry.nbytes for entry in self._entries.values())
        for digest in list(self._entries):
            if used <= self._capacity:
                return
            if not self._entries[digest].in_use:
                used -= self._entries.pop(digest).nbytes


def _parts(items: Sequence[StepItem]) -> Iterator[tuple[StepItem, Media, int]]:
    """Each item's runs, and the row of the flat batch where each starts."""
    first = 0
    for item in items:
        for run in runs_within(item):
            yield item, run, first + run.start - item.start
        first += item.count


def _input(item: StepItem, run: Media) -> MediaInput:
    return item.request.spec.inputs[run.item]


def _groups(inputs: Sequence[MediaInput], most: int) -> Iterator[list[MediaInput]]:
    """Neighbours of at most so many feature rows together, at least one each."""
    group: list[MediaInput] = []
    for each in inputs:
        if group and sum(other.tokens for other in group) + each.tokens > most:
            yield group
            group = []
        group.append(each)
    if group:
        yield group
