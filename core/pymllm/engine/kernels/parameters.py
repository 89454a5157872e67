"""A step's rows as device tensors, for the kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from pymllm.engine.fast_parameters import row_arrays
from pymllm.engine.philox import uniforms_of_arrays
from pymllm.engine.transfer import to_device

if TYPE_CHECKING:
    from pymllm.engine.sampling_batch import SampleRow


@dataclass(frozen=True)
class RowParameters:
    """slope: [S] float32, 0 in greedy rows; number: [S] float64; top_k, least: [S] int64, top_p: [S] float64, each
    None if no row uses it (see :class:`pymllm.engine.draw.DrawGroup` for their meaning)."""

    slope: Tensor
    number: Tensor
    top_k: Tensor | None = None
    top_p: Tensor | None = None
    least: Tensor | None = None

    @classmethod
    def collect(cls, rows: Sequence[SampleRow], vocab_size: int, device: torch.device) -> RowParameters:
        """Host work of a step, over arrays; one copy, which the host does not wait for."""
        constants, positions = row_arrays(rows)
        host = np.zeros((5, len(rows)), dtype=np.int64)
        host[0].view(np.float32)[: len(rows)] = constants["slope"]
        drawn = constants["slope"] != 0
        if drawn.any():
            host[1].view(np.float64)[:] = uniforms_of_arrays(constants["seed"], positions.view(np.uint64))
        host[2] = np.minimum(constants["top_k"], vocab_size)
        host[3].view(np.float64)[:] = constants["top_p"]
        host[4] = constants["least"]
        device_rows = to_device(host, device)
        return cls(
            slope=device_rows[0].view(torch.float32)[: len(rows)],
            number=device_rows[1].view(torch.float64),
            top_k=device_rows[2] if (drawn & (constants["top_k"] < vocab_size)).any() else None,
            top_p=device_rows[3].view(torch.float64) if (drawn & (constants["top_p"] < 1.0)).any() else None,
            least=device_rows[4] if (drawn & (constants["least"] > 1)).any() else None,
        )

    def draw(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        """scores: [S, V] of any float type -> tokens [S] int64 and valid [S] bool; waits for nothing."""
        from pymllm.engine.kernels.launch import Scratch, draw_rows

        size, vocab_size = scores.shape
        tokens = torch.empty(size, dtype=torch.int64, device=scores.device)
        valid = torch.empty(size, dtype=torch.bool, device=scores.device)
        scratch = Scratch(size, vocab_size, scores.device)
        draw_rows(
            scores, self.slope, self.number, tokens, valid, scratch,
            top_k=self.top_k, top_p=self.top_p, least=self.least,
        )  # fmt: skip
        return tokens, valid
