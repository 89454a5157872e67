"""What changes logits before a token is chosen, without kernels: logit_bias, min_tokens, and the three penalties.

On a device with kernels, :mod:`pymllm.engine.kernels.edits` takes the place of this."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from pymllm.engine.transfer import to_device

if TYPE_CHECKING:
    from pymllm.engine.sample_row import SampleRow


class TokenHistory:
    """The tokens of one request, counted as its answer grows (only the new ones at each step)."""

    def __init__(self, prompt_ids: Sequence[int], vocab_size: int) -> None:
        prompt = np.unique(np.asarray(prompt_ids, dtype=np.int64))
        self._vocab_size = vocab_size
        self._prompt = prompt[(prompt >= 0) & (prompt < vocab_size)]
        self._counts: dict[int, int] = {}
        self._counted = 0

    def update(self, tokens: Sequence[int], start: int) -> None:
        """Count what was appended since the last call to an answer (which only grows). tokens: it begins at
        ``start``."""
        for token in tokens[start + self._counted :]:
            if 0 <= token < self._vocab_size:
                self._counts[token] = self._counts.get(token, 0) + 1
        self._counted = len(tokens) - start

    def output(self) -> tuple[np.ndarray, np.ndarray]:
        """Distinct tokens of the answer, int64, and how often each occurs, float32."""
        size = len(self._counts)
        ids = np.fromiter(self._counts.keys(), np.int64, size)
        return ids, np.fromiter(self._counts.values(), np.float32, size)

    def seen(self) -> np.ndarray:
        """Tokens of the prompt and the answer, int64; one may occur twice."""
        return np.concatenate([self._prompt, self.output()[0]])


class _Entries:
    """Pairs (place in the flattened logits, value), collected row by row."""

    def __init__(self) -> None:
        self.places: list[np.ndarray] = []
        self.values: list[np.ndarray] = []

    def add(self, row: int, vocab_size: int, ids: np.ndarray, values: np.ndarray | float) -> None:
        self.places.append(ids + row * vocab_size)
        self.values.append(np.broadcast_to(np.float32(values), ids.shape))


@dataclass(frozen=True)
class LogitEdits:
    """Sparse changes to logits [S, V]; places index the flattened tensor.

    Each is a pair (places int64, values float32). add: biases and the -inf of forbidden end tokens.
    repetition: penalties. subtract: presence and frequency penalties.
    """

    add: tuple[Tensor, Tensor]
    repetition: tuple[Tensor, Tensor]
    subtract: tuple[Tensor, Tensor]

    @classmethod
    def collect(cls, rows: Sequence[SampleRow], vocab_size: int, device: torch.device) -> LogitEdits | None:
        """What the rows ask for now, or None. Raises ValueError for a logit_bias outside the vocabulary
        (the engine refuses such a request at the door)."""
        groups = (_Entries(), _Entries(), _Entries())
        for index, row in enumerate(rows):
            if row.biased:
                groups[0].add(index, vocab_size, *row.additions(row.position, vocab_size))
            if row.penalized:
                _collect_penalties(index, row, vocab_size, *groups[1:])
        lengths = [sum(map(len, group.places)) for group in groups]
        if not any(lengths):
            return None
        places = to_device(np.concatenate([p for group in groups for p in group.places]), device)
        values = to_device(np.concatenate([v for group in groups for v in group.values]), device)
        add, repetition, subtract = zip(places.split(lengths), values.split(lengths))
        return cls(add, repetition, subtract)

    def apply(self, logits: Tensor) -> Tensor:
        """logits: [S, V] -> a changed float32 copy. A NaN stays one, also under a mask."""
        edited = logits.to(torch.float32, copy=True, memory_format=torch.contiguous_format)
        flat = edited.view(-1)
        places, values = self.add
        flat.index_add_(0, places, values)
        places, values = self.repetition
        if len(places):
            # A place given twice gets the same value twice: both are computed before either is stored.
            old = flat[places]
            flat[places] = torch.where(old > 0, old / values, old * values)
        places, values = self.subtract
        flat.index_add_(0, places, values, alpha=-1)
        return edited


def _collect_penalties(index: int, row: SampleRow, vocab_size: int, repetition: _Entries, subtract: _Entries) -> None:
    params = row.params
    history = row.update_history(vocab_size)
    if params.repetition_penalty != 1.0:
        assert params.repetition_penalty is not None, "sampling params come with defaults filled"
        repetition.add(index, vocab_size, history.seen(), params.repetition_penalty)
    if params.presence_penalty != 0.0 or params.frequency_penalty != 0.0:
        ids, counts = history.output()
        subtract.add(index, vocab_size, ids, params.presence_penalty + params.frequency_penalty * counts)
