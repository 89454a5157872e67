"""What a step of plain rows gives the device: two numbers a row, computed over arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from pymllm.engine.philox import uniforms_of_arrays

if TYPE_CHECKING:
    from pymllm.engine.sampling_batch import SampleRow

ROW_CONSTANTS = np.dtype(
    [
        ("seed", np.uint64),
        ("plain_from", np.int64),
        ("top_p", np.float64),
        ("least", np.int64),
        ("slope", np.float32),
        ("top_k", np.int32),
    ]
)
"""What does not change in a row's life. plain_from: the position from which on it asks for nothing but a
temperature, NEVER if it never does. slope: -log2(e) / temperature, 0 if greedy. top_k: NO_TOP_K if off.
least: as in :class:`pymllm.engine.draw.DrawGroup`."""

NEVER = 2**63 - 1
NO_TOP_K = 2**31 - 1


def fast_parameters(rows: Sequence[SampleRow]) -> tuple[np.ndarray, np.ndarray] | None:
    """slope [S] float32 and number [S] float64 for :class:`pymllm.engine.kernels.sample.FastSampler`, or None
    if some row needs more than a temperature (or, for now, a mask until its min_tokens)."""
    seeds = fast_seeds(rows)
    return None if seeds is None else (seeds[0], uniforms_of_arrays(*seeds[1:]))


def fast_seeds(rows: Sequence[SampleRow]) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    """As ``fast_parameters``, but slope, seed [S] uint64 and position [S] uint64: the device makes the numbers,
    which takes most of the host's time otherwise (:meth:`FastSampler.seeded`)."""
    constants, positions = row_arrays(rows)
    if (positions < constants["plain_from"]).any():
        return None
    return constants["slope"], constants["seed"], positions.view(np.uint64)


def row_arrays(rows: Sequence[SampleRow]) -> tuple[np.ndarray, np.ndarray]:
    """ROW_CONSTANTS [S] and positions [S] int64."""
    constants = np.frombuffer(b"".join([row.constants for row in rows]), dtype=ROW_CONSTANTS)
    return constants, np.array([row.position for row in rows], dtype=np.int64)
