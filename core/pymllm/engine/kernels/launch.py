"""Launches the passes of :mod:`.passes` and :mod:`.search` over a batch. Imports Triton."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pymllm.engine.kernels.passes import block_masses, block_peaks, pick
from pymllm.engine.kernels.search import SHIFTS, THRESHOLDS, resolve, search

BLOCK = 1024
_WIDE_FROM = 16
"""Rows from which programs read more than one block: there are enough of them to fill a GPU then."""

_WIDE = 4
"""Blocks that they read."""


@dataclass(frozen=True)
class Selection:
    """Device tensors of what top_k and top_p keep. limits: [R] int32; ties: [R] int64."""

    limits: Tensor
    ties: Tensor


class Scratch:
    """What passes leave for each other, for at most ``rows`` rows. 12 bytes for each 1024 logits.

    peaks: [rows, NB] float32. masses: [rows, NB] int64."""

    def __init__(self, rows: int, vocab_size: int, device: torch.device) -> None:
        self.blocks = _ceil(vocab_size, BLOCK)
        self.peaks = torch.empty(rows, self.blocks, dtype=torch.float32, device=device)
        self.masses = torch.empty(rows, self.blocks, dtype=torch.int64, device=device)


def draw_rows(
    logits: Tensor,
    slope: Tensor,
    number: Tensor,
    tokens: Tensor,
    valid: Tensor,
    scratch: Scratch,
    *,
    positions: Tensor | None = None,
    top_k: Tensor | None = None,
    top_p: Tensor | None = None,
    least: Tensor | None = None,
) -> None:
    """Fill tokens [R] int64 and valid [R] (bool or an integer type) from logits [R, V] of stride 1 along V.

    slope: [R] float32, 0 for greedy rows. number: [R] float64; or, with positions [R] int64, the seeds, int64, of
    :func:`pymllm.engine.philox.uniforms`. top_k, least: [R] int64, top_p: [R] float64, or
    None where no row uses it (their meaning is that of :class:`pymllm.engine.draw.DrawGroup`)."""
    R, V = logits.shape
    NB = scratch.blocks
    assert logits.stride(1) == 1
    assert len(scratch.peaks) >= R
    assert V <= NB * BLOCK
    if valid.dtype == torch.bool:
        valid = valid.view(torch.uint8)
    PER = _WIDE if R >= _WIDE_FROM else 1
    NBP = _power_of_two(NB)
    grid = (_ceil(NB, PER), R)
    block_peaks[grid](logits, logits.stride(0), scratch.peaks, V, NB, PER=PER, BLOCK=BLOCK, num_warps=4)
    chosen = None
    if top_k is not None:
        chosen = _search(logits, slope, top_k, None, scratch, mass=False)
    if top_p is not None:
        chosen = _search(logits, slope, top_p, chosen, scratch, mass=True)
    # Tensors that a pass does not look at are stood in for by others of the same type.
    limits, ties = (chosen.limits, chosen.ties) if chosen else (tokens, tokens)
    weights = tokens if least is None else least
    equals = scratch.masses if chosen is None else torch.empty(R, NB, dtype=torch.int32, device=logits.device)
    options = {"SELECT": chosen is not None, "MIN_P": least is not None, "BLOCK": BLOCK, "NBP": NBP, "num_warps": 4}
    block_masses[grid](
        logits, logits.stride(0), scratch.peaks, slope, weights, limits, scratch.masses, equals, V, NB,
        PER=PER, **options,
    )  # fmt: skip
    pick[(R,)](
        logits, logits.stride(0), scratch.peaks, slope, number, tokens if positions is None else positions, weights,
        limits, ties, scratch.masses, equals, tokens, valid, V, NB, SEEDED=positions is not None, **options,
    )  # fmt: skip


def _search(
    logits: Tensor, slope: Tensor, wanted: Tensor, among: Selection | None, scratch: Scratch, *, mass: bool
) -> Selection:
    R, V = logits.shape
    NB = scratch.blocks
    device = logits.device
    TILES = 8 if R >= _WIDE_FROM else 2
    GROUPS = BLOCK // 8
    CH = _ceil(V, TILES * BLOCK)
    lows = torch.empty(len(SHIFTS), R, dtype=torch.int32, device=device)
    partials = torch.empty(2, R, CH, THRESHOLDS.value, dtype=torch.int64, device=device)
    kept = torch.empty(R, CH, dtype=torch.int64, device=device)
    found = Selection(
        torch.empty(R, dtype=torch.int32, device=device), torch.empty(R, dtype=torch.int64, device=device)
    )
    before = among or found
    options = {
        "MASS": mass, "HAS_K": among is not None, "CHP": _power_of_two(CH), "NBP": _power_of_two(NB), "num_warps": 4,
    }  # fmt: skip
    for index, shift in enumerate(SHIFTS):
        previous = max(index - 1, 0)
        search[(CH, R)](
            logits, logits.stride(0), scratch.peaks, slope, wanted, before.limits, before.ties, kept,
            lows[previous], lows[index], partials[previous % 2], partials[index % 2],
            V, NB, CH, shift, SHIFTS[previous],
            FIRST=index == 0, TILES=TILES, GROUPS=GROUPS, **options,
        )  # fmt: skip
    last = len(SHIFTS) - 1
    resolve[(R,)](
        scratch.peaks, slope, wanted, before.limits, before.ties, kept, lows[last], partials[last % 2],
        found.limits, found.ties, V, NB, CH, **options,
    )  # fmt: skip
    return found


def _ceil(a: int, b: int) -> int:
    return -(-a // b)


def _power_of_two(n: int) -> int:
    return 1 << (n - 1).bit_length()
