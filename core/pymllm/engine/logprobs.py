"""Log-probabilities of the model itself: log-softmax of the raw logits, in float32."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pymllm.engine.messages import TokenLogprobs
from pymllm.engine.transfer import row_index, rows_at_once

_ID_BITS = 32
_ID_MASK = (1 << _ID_BITS) - 1


@dataclass(frozen=True)
class Logprobs:
    """Of L tokens. chosen: [L] float32. values: [L, K] float32, likeliest first; ids: [L, K] int64, theirs
    (equal logits in order of id). K is the most that any row wants."""

    chosen: Tensor
    values: Tensor
    ids: Tensor

    def to_host(self, tops: Sequence[int]) -> list[TokenLogprobs]:
        """As messages, with the first tops[i] alternatives of row i."""
        rows = zip(self.chosen.tolist(), self.values.tolist(), self.ids.tolist(), tops)
        return [TokenLogprobs(chosen, dict(zip(ids[:top], values[:top]))) for chosen, values, ids, top in rows]


@dataclass(frozen=True)
class LogprobPlan:
    """Which rows of a batch want log-probabilities. rows, index: theirs, on host and device; tops: how many
    alternatives each wants."""

    rows: list[int]
    index: Tensor | slice
    tops: list[int]

    @classmethod
    def collect(cls, wanted: Sequence[int | None], vocab_size: int, device: torch.device) -> LogprobPlan | None:
        """wanted: of each row, the number of alternatives, or None. None if no row wants any."""
        rows = [row for row, top in enumerate(wanted) if top is not None]
        if not rows:
            return None
        return cls(rows, row_index(rows, device), [min(top, vocab_size) for top in wanted if top is not None])

    def compute(self, logits: Tensor, tokens: Tensor) -> Logprobs:
        """logits: [S, V], raw; tokens: [S] int64, the chosen -> of this plan's rows."""
        return logprobs(logits[self.index], tokens[self.index], max(self.tops))


def logprobs(logits: Tensor, tokens: Tensor, top: int) -> Logprobs:
    """logits: [L, V] of any float type; tokens: [L] int64; top: alternatives, at most V."""
    step = rows_at_once(logits.shape[1], logits.device)
    parts = [_logprobs(x, t, top) for x, t in zip(logits.split(step), tokens.split(step))]
    chosen, values, ids = (torch.cat(tensors) for tensors in zip(*parts))
    return Logprobs(chosen, values, ids)


def prompt_logprobs(logits: Tensor, target_ids: Tensor, n: int) -> list[TokenLogprobs]:
    """Log-probabilities of given tokens, each with the n likeliest.

    logits: [N, V], raw; row i predicts target i. target_ids: [N] int64. A row that holds a NaN gives NaNs.
    """
    if not len(target_ids):
        return []
    top = min(n, logits.shape[1])
    return logprobs(logits, target_ids, top).to_host([top] * len(target_ids))


def _logprobs(logits: Tensor, tokens: Tensor, top: int) -> tuple[Tensor, Tensor, Tensor]:
    logits = logits.float()
    table = torch.log_softmax(logits, dim=-1)
    ids = _ranked(logits, top)
    return table.gather(1, tokens[:, None]).squeeze(1), table.gather(1, ids), ids


def _ranked(logits: Tensor, top: int) -> Tensor:
    """Ids of the ``top`` largest logits, equal ones in order of id, so that they depend on the row alone
    (``topk`` leaves the order of equal values open). [L, V] float32 -> [L, top] int64."""
    if top == 0:
        return torch.empty(len(logits), 0, dtype=torch.int64, device=logits.device)
    bits = (logits + 0.0).view(torch.int32)  # adding zero makes -0.0 equal to 0.0
    ordered = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).long()  # integers of the same order as the floats
    ids = torch.arange(logits.shape[1], device=logits.device)
    keys = (ordered << _ID_BITS) | (_ID_MASK - ids)
    return _ID_MASK - (keys.topk(top, dim=-1).values & _ID_MASK)
