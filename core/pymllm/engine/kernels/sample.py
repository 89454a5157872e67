"""Sampling without a host round trip: :class:`FastSampler`, for steps that a CUDA graph replays.

It serves rows that are greedy or have a temperature and nothing else
(:func:`pymllm.engine.fast_parameters.fast_parameters` tells); :func:`pymllm.engine.sampler.sample` serves all
rows. Both choose the same tokens. Without Triton or a GPU the passes are plain torch.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pymllm.engine.draw import DrawGroup, draw
from pymllm.engine.fast_parameters import fast_parameters, fast_seeds
from pymllm.engine.kernels.availability import has_kernels
from pymllm.engine.philox import uniforms

__all__ = ["FastSampler", "fast_parameters", "fast_sample", "fast_seeds"]


class FastSampler:
    """Scratch memory for batches of at most ``max_rows`` rows of ``vocab_size`` logits (12 bytes for each 1024).

    One object serves one stream: two launches in flight on different streams would share it."""

    def __init__(self, max_rows: int, vocab_size: int, device: torch.device) -> None:
        self.max_rows = max_rows
        self.vocab_size = vocab_size
        self._scratch = None
        if has_kernels(device):
            from pymllm.engine.kernels.launch import Scratch

            self._scratch = Scratch(max_rows, vocab_size, device)

    def __call__(self, logits: Tensor, slope: Tensor, number: Tensor, tokens: Tensor, valid: Tensor) -> None:
        """Choose a token of each row; allocates nothing, waits for nothing, and can be captured in a graph.

        logits: [R, V] bfloat16, float16 or float32, of any row stride, unchanged. slope: [R] float32,
        -log2(e) / temperature, 0 in greedy rows. number: [R] float64, uniform in [0, 1). Written: tokens, [R]
        int64; valid, [R] bool or int64, false where the logits hold a NaN or +inf, or nothing but -inf (the
        token is 0 then)."""
        self._draw(logits, slope, number, None, tokens, valid)

    def seeded(
        self, logits: Tensor, slope: Tensor, seeds: Tensor, positions: Tensor, tokens: Tensor, valid: Tensor
    ) -> None:
        """The same with each row's number made on the device, from its seed and position, [R] int64 (the bits of
        :func:`fast_seeds`)."""
        self._draw(logits, slope, seeds, positions, tokens, valid)

    def _draw(
        self, logits: Tensor, slope: Tensor, number: Tensor, positions: Tensor | None, tokens: Tensor, valid: Tensor
    ) -> None:
        assert len(logits) <= self.max_rows
        assert logits.shape[1] == self.vocab_size
        if self._scratch is not None:
            from pymllm.engine.kernels.launch import draw_rows

            draw_rows(logits, slope, number, tokens, valid, self._scratch, positions=positions)
            return
        if positions is not None:
            number = torch.tensor(uniforms(number.tolist(), positions.tolist()), device=logits.device)
        _sample_with_torch(logits, slope, number, tokens, valid)


def fast_sample(
    logits: Tensor, slope: Tensor, number: Tensor, tokens: Tensor, valid: Tensor, workspace: FastSampler
) -> None:
    """``workspace(...)``, see :class:`FastSampler`."""
    workspace(logits, slope, number, tokens, valid)


def _sample_with_torch(logits: Tensor, slope: Tensor, number: Tensor, tokens: Tensor, valid: Tensor) -> None:
    peak, best = logits.max(dim=-1)
    group = DrawGroup.whole(slope, number)
    drawn = draw(logits.float(), peak.float()[:, None], group)
    finite = torch.isfinite(peak)
    tokens.copy_(torch.where(finite, torch.where(slope == 0, best, drawn), 0))
    valid.copy_(finite)
