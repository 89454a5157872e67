"""Penalties from token counts that live on the device, so that a step can start before the host knows the
last step's tokens."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from pymllm.engine.transfer import to_device

if TYPE_CHECKING:
    from pymllm.engine.sampling_batch import SampleRow

IN_PROMPT = 1 << 30
"""Bit of a count that says that the token is in the prompt; the bits below count it in the answer."""

_FIRST_ROWS = 8


class PenaltyCounts:
    """How often each request's answer holds each token, and what its prompt holds: [requests, V] int32.

    Nothing is allocated before the first request with a penalty; then 4 V bytes (0.6 MB at V = 151,936) for
    each such request alive at once, in powers of two from 8. A request's row is taken when its
    :class:`SampleRow` is first seen here, filled from its ids, and given back when that object dies. From
    then on only :meth:`add` counts: ``output_ids`` may lag behind. All work is in order of the stream."""

    def __init__(self, vocab_size: int, device: torch.device) -> None:
        self._vocab_size = vocab_size
        self._device = device
        self._table = torch.zeros(0, vocab_size, dtype=torch.int32, device=device)
        self._free: list[int] = []
        self._places: dict[int, int] = {}

    @property
    def bytes(self) -> int:
        """Device memory held."""
        return self._table.numel() * self._table.element_size()

    def place(self, row: SampleRow) -> int:
        """Index of the row's counts, filled if it is new."""
        place = self._places.get(id(row))
        if place is None:
            if not self._free:
                self._grow()
            place = self._places[id(row)] = self._free.pop()
            weakref.finalize(row, self._release, id(row))
            self._fill(place, row)
        return place

    def refill(self, row: SampleRow) -> None:
        """Count again from the row's ids, which are complete: a sampled token was thrown away."""
        if id(row) in self._places:
            self._fill(self._places[id(row)], row)

    def add(self, places: Tensor, tokens: Tensor) -> None:
        """Count a sampled token of each row. places: [P] int64, distinct; tokens: [P] int64."""
        self._table.view(-1).index_add_(
            0, places * self._vocab_size + tokens, torch.ones_like(tokens, dtype=torch.int32)
        )

    def penalize(self, scores: Tensor, places: Tensor, penalties: Tensor) -> None:
        """Change scores [S, V] float32, contiguous, in place. places: [S] int64, negative: none. penalties:
        [3, S] float32, repetition, presence and frequency."""
        from pymllm.engine.kernels.penalize import penalize

        S, V = scores.shape
        grid = (-(-V // 2048), S)
        # As on the host: each rounding on its own.
        penalize[grid](scores, self._table, places, penalties, S, V, BLOCK=2048, enable_fp_fusion=False)

    def _fill(self, place: int, row: SampleRow) -> None:
        prompt = self._known(row.prompt_ids)
        output = self._known(row.output_ids)
        ids = np.concatenate([np.unique(prompt), output])
        values = np.concatenate([np.full(len(ids) - len(output), IN_PROMPT), np.ones(len(output))]).astype(np.int32)
        counts = self._table[place]
        counts.zero_()
        counts.index_add_(0, to_device(ids, self._device), to_device(values, self._device))

    def _known(self, ids: Sequence[int]) -> np.ndarray:
        array = np.asarray(ids, dtype=np.int64)
        return array[(array >= 0) & (array < self._vocab_size)]

    def _grow(self) -> None:
        old = len(self._table)
        new = max(_FIRST_ROWS, 2 * old)
        table = torch.zeros(new, self._vocab_size, dtype=torch.int32, device=self._device)
        table[:old] = self._table
        self._table = table
        self._free += range(new - 1, old - 1, -1)

    def _release(self, key: int) -> None:
        self._free.append(self._places.pop(key))


@dataclass(frozen=True)
class CountedPenalties:
    """A step's penalties, from device counts. places: [S] int64, -1 where a row has none; rows, counted: [P]
    int64, the rows that have, and their places; penalties: [3, S] float32."""

    counts: PenaltyCounts
    places: Tensor
    penalties: Tensor
    rows: Tensor
    counted: Tensor

    @classmethod
    def collect(cls, rows: Sequence[SampleRow], counts: PenaltyCounts, device: torch.device) -> CountedPenalties | None:
        """Of the rows with a penalty, or None if there are none."""
        penalized = [index for index, row in enumerate(rows) if row.penalized]
        if not penalized:
            return None
        integers = np.full(len(rows) + 2 * len(penalized), -1, dtype=np.int64)
        places, index, counted = np.split(integers, [len(rows), len(rows) + len(penalized)])
        penalties = np.zeros((3, len(rows)), dtype=np.float32)
        index[:] = penalized
        for i in penalized:
            params = rows[i].params
            places[i] = counts.place(rows[i])
            penalties[:, i] = params.repetition_penalty, params.presence_penalty, params.frequency_penalty
        counted[:] = places[index]
        parts = to_device(integers, device).split([len(rows), len(penalized), len(penalized)])
        return cls(counts, parts[0], to_device(penalties, device), parts[1], parts[2])

    def apply(self, scores: Tensor) -> None:
        """Change scores [S, V] float32 in place."""
        self.counts.penalize(scores, self.places, self.penalties)

    def add(self, tokens: Tensor) -> None:
        """Count the sampled tokens [S]."""
        self.counts.add(self.counted, tokens[self.rows])
