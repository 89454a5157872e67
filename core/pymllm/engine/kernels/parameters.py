"""A step's rows as device tensors, for the kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from pymllm.engine.fast_parameters import row_arrays
from pymllm.engine.transfer import to_device

if TYPE_CHECKING:
    from pymllm.engine.sampling_batch import SampleRow


@dataclass(frozen=True)
class RowParameters:
    """slope: [S] float32, 0 in greedy rows; seed, position: [S] int64, of the row's number; top_k, least: [S]
    int64, top_p: [S] float64, each None if no row uses it (see :class:`pymllm.engine.draw.DrawGroup`)."""

    slope: Tensor
    seed: Tensor
    position: Tensor
    top_k: Tensor | None = None
    top_p: Tensor | None = None
    least: Tensor | None = None

    @classmethod
    def collect(cls, rows: Sequence[SampleRow], vocab_size: int, device: torch.device) -> RowParameters:
        """Host work of a step, over arrays; one copy, which the host does not wait for."""
        constants, positions = row_arrays(rows)
        size = len(rows)
        host = np.empty((6, size), dtype=np.int64)
        host[0].view(np.float32)[:size] = constants["slope"]
        host[1].view(np.uint64)[:] = constants["seed"]
        host[2] = positions
        host[3] = np.minimum(constants["top_k"], vocab_size)
        host[4].view(np.float64)[:] = constants["top_p"]
        host[5] = constants["least"]
        drawn = constants["slope"] != 0
        there = to_device(host, device)
        return cls(
            slope=there[0].view(torch.float32)[:size],
            seed=there[1],
            position=there[2],
            top_k=there[3] if (drawn & (constants["top_k"] < vocab_size)).any() else None,
            top_p=there[4].view(torch.float64) if (drawn & (constants["top_p"] < 1.0)).any() else None,
            least=there[5] if (drawn & (constants["least"] > 1)).any() else None,
        )

    def draw(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        """scores: [S, V] of any float type -> tokens [S] int64 and valid [S] bool; waits for nothing."""
        from pymllm.engine.kernels.launch import Scratch, draw_rows

        size, vocab_size = scores.shape
        tokens = torch.empty(size, dtype=torch.int64, device=scores.device)
        valid = torch.empty(size, dtype=torch.bool, device=scores.device)
        scratch = Scratch(size, vocab_size, scores.device)
        draw_rows(
            scores, self.slope, self.seed, tokens, valid, scratch,
            positions=self.position, top_k=self.top_k, top_p=self.top_p, least=self.least,
        )  # fmt: skip
        return tokens, valid
