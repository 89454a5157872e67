"""Logits to tokens. Order: logit_bias, repetition, presence and frequency penalties, min_tokens mask;
then greedy rows take the argmax, others temperature, top_k, top_p, min_p and a draw (see
:mod:`pymllm.engine.draw`). Log-probabilities are of the raw logits.

``SamplingBatch.build`` is the host's part and ``sample`` the device's: on a GPU ``sample`` never waits
for the device, and kernels choose the tokens (:mod:`pymllm.engine.kernels`). On a CPU, top_k and top_p rows
look at the likeliest tokens first and at the whole vocabulary only where these do not suffice. The result is
the same in every case.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pymllm.engine.draw import draw
from pymllm.engine.logprobs import LogprobPlan, Logprobs, prompt_logprobs
from pymllm.engine.messages import TokenLogprobs
from pymllm.engine.sample_row import SampleRow
from pymllm.engine.sampling_batch import SamplingBatch

__all__ = ["SampleRow", "Samples", "SamplingBatch", "prompt_logprobs", "sample"]


@dataclass(frozen=True)
class Samples:
    """tokens: [S] int64, device; 0 in an invalid row. valid: [S] bool, device; False where the logits
    held a NaN or +inf, or nothing was left to choose from: that request cannot go on. logprobs: of the
    rows in ``plan`` (NaN in an invalid row), or None if no row wants them."""

    tokens: Tensor
    valid: Tensor
    logprobs: Logprobs | None = None
    plan: LogprobPlan | None = None

    def to_host(self) -> tuple[list[int], list[TokenLogprobs | None]]:
        """Tokens and log-probabilities (None for rows that want none), S each. Waits for the device."""
        tokens: list[int] = self.tokens.tolist()
        entries: list[TokenLogprobs | None] = [None] * len(tokens)
        if self.logprobs is not None and self.plan is not None:
            for row, entry in zip(self.plan.rows, self.logprobs.to_host(self.plan.tops)):
                entries[row] = entry
        return tokens, entries


def sample(logits: Tensor, batch: SamplingBatch) -> Samples:
    """Choose a token of each row. logits: [S, V] of any float type, left unchanged."""
    assert len(logits) == batch.size, f"{len(logits)} rows of logits for a batch of {batch.size}"
    tokens, valid = _draw_in_groups(logits, batch) if batch.parameters is None else batch.parameters.draw(logits)
    if batch.logprobs is None:
        return Samples(tokens, valid)
    return Samples(tokens, valid, batch.logprobs.compute(logits, tokens), batch.logprobs)


def _draw_in_groups(logits: Tensor, batch: SamplingBatch) -> tuple[Tensor, Tensor]:
    """The choice without kernels: tokens [S] int64, valid [S] bool."""
    scores = logits if batch.edits is None else batch.edits.apply(logits)
    if batch.any_greedy:
        peak, tokens = scores.max(dim=-1)
    else:
        peak = scores.amax(dim=-1)
        tokens = torch.empty(len(scores), dtype=torch.int64, device=scores.device)
    valid = torch.isfinite(peak)
    for group in batch.draws:
        tokens[group.rows] = draw(scores[group.rows].float(), peak[group.rows].float().unsqueeze(1), group)
    return torch.where(valid, tokens, 0), valid
