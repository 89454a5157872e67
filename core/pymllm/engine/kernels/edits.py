"""What changes logits, kept on the device for each request, so that a step can start before the host knows the last
step's tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

import numpy as np
import torch
from torch import Tensor

from pymllm.engine.kernels.layout import IN_PROMPT
from pymllm.engine.transfer import to_device

if TYPE_CHECKING:
    from pymllm.engine.sample_row import SampleRow


class RowEdits:
    """The edits of one request, which lives as long as its :class:`SampleRow`.

    counts: [V] int32 (or None), how often the answer holds each token, and IN_PROMPT. bias: [V] float32 (or None).
    counts_at, bias_at: their addresses, 0 for None. next: the position of the answer that the counts are complete
    for. masked: whether the bias forbids end tokens; None before there was one.
    """

    __slots__ = ("bias", "bias_at", "counts", "counts_at", "masked", "next")

    def __init__(self) -> None:
        self.bias: Tensor | None = None
        self.counts: Tensor | None = None
        self.bias_at = self.counts_at = 0
        self.masked: bool | None = None
        self.next = -1


class EditTables:
    """Makes the edits of requests ready for a step. All work is in order of the stream.

    A request with a penalty takes 4 V bytes (0.6 MB at V = 151,936) until it ends, one with a logit_bias or a mask
    likewise, but requests with the same share them. Nothing is allocated before there is one.

    Counts are filled from a request's tokens when it first samples. From then on the kernel that draws a token counts
    it, so the host need not know it. Where the position says that a token was thrown away (its step failed, or the
    request was preempted while it was in flight), they are filled again.
    """

    def __init__(self, vocab_size: int, device: torch.device) -> None:
        self._vocab_size = vocab_size
        self._device = device
        self._biases: WeakValueDictionary[tuple[bytes, bytes], Tensor] = WeakValueDictionary()

    def ready(self, row: SampleRow, position: int) -> RowEdits:
        """The row's edits, right for the token at ``position`` of its answer. Raises ValueError for a logit_bias
        outside the vocabulary."""
        edits = row.edits
        if edits is None:
            edits = row.edits = RowEdits()
        if row.penalized and edits.next != position:
            self._count(edits, row, position)
        masked = position < row.params.min_tokens
        if row.biased and edits.masked is not masked:
            edits.bias = self._bias(row, position) if masked or row.params.logit_bias else None
            edits.bias_at = 0 if edits.bias is None else edits.bias.data_ptr()
            edits.masked = masked
        return edits

    def _count(self, edits: RowEdits, row: SampleRow, position: int) -> None:
        known = row.tokens[: row.prompt_length + position]
        assert len(known) == row.prompt_length + position, "a token that was not counted here is not known"
        if edits.counts is None:
            edits.counts = torch.empty(self._vocab_size, dtype=torch.int32, device=self._device)
            edits.counts_at = edits.counts.data_ptr()
        answer = self._inside(known[row.prompt_length :])
        edits.counts.zero_()
        edits.counts.index_fill_(0, self._inside(known[: row.prompt_length]), IN_PROMPT)
        edits.counts.index_add_(0, answer, torch.ones_like(answer, dtype=torch.int32))

    def _inside(self, ids: Sequence[int]) -> Tensor:
        """Those in the vocabulary (placeholders of images may not be)."""
        array = np.array(ids, dtype=np.int64)
        return to_device(array[(array >= 0) & (array < self._vocab_size)], self._device)

    def _bias(self, row: SampleRow, position: int) -> Tensor:
        ids, values = row.additions(position, self._vocab_size)
        key = ids.tobytes(), values.tobytes()
        bias = self._biases.get(key)
        if bias is None:
            bias = torch.zeros(self._vocab_size, dtype=torch.float32, device=self._device)
            bias.index_add_(0, to_device(ids, self._device), to_device(values, self._device))
            self._biases[key] = bias
        return bias
