"""Launches the passes of :mod:`.passes` and :mod:`.search` over a batch. Imports Triton."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pymllm.engine.kernels.layout import Need
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

    peaks: [rows, NB] float32. masses: [rows, NB] int64. One object serves one stream: two launches in flight on
    different streams would share it."""

    def __init__(self, rows: int, vocab_size: int, device: torch.device) -> None:
        self.blocks = _ceil(vocab_size, BLOCK)
        self.peaks = torch.empty(rows, self.blocks, dtype=torch.float32, device=device)
        self.masses = torch.empty(rows, self.blocks, dtype=torch.int64, device=device)


def results_like(logits: Tensor) -> Tensor:
    """[2, R] int64 for the tokens and the validity of logits [R, V]. Both rows begin where 16 bytes do, as kernels are
    compiled again for tensors that do not."""
    rows = len(logits)
    return torch.empty(2, rows + rows % 2, dtype=torch.int64, device=logits.device)[:, :rows]


def draw_rows(logits: Tensor, table: Tensor, need: Need, tokens: Tensor, valid: Tensor, scratch: Scratch) -> None:
    """Choose a token of each row; waits for nothing, and can be captured in a graph.

    logits: [R, V] of any float type, of stride 1 along V, unchanged. table: [ROWS, >= R] int64, see
    :mod:`pymllm.engine.kernels.layout`. need: at least that of all rows. Written: tokens, [R] int64; valid, [R] int64,
    0 where the edited logits hold a NaN or +inf, or nothing but -inf (the token is 0 then). With ``Need.edited``,
    tokens of rows that have counts are counted."""
    R, V = logits.shape
    NB = scratch.blocks
    assert logits.stride(1) == 1
    assert len(scratch.peaks) >= R
    assert V <= NB * BLOCK
    PER = _WIDE if R >= _WIDE_FROM else 1
    NBP = _power_of_two(NB)
    edited, select = need is Need.edited, need is not Need.plain
    rows = (logits, logits.stride(0), table, table.stride(0), scratch.peaks)
    # Scores are rounded as on a CPU, and alike in all passes: no fused multiply-add.
    options = {"EDITED": edited, "BLOCK": BLOCK, "num_warps": 4, "enable_fp_fusion": False}
    grid = (_ceil(NB, PER), R)
    block_peaks[grid](*rows, V, NB, PER=PER, **options)
    if select:
        chosen = _search(rows, V, NB, edited, None)
        chosen = _search(rows, V, NB, edited, chosen)
        equals = torch.empty(R, NB, dtype=torch.int32, device=logits.device)
    else:  # not looked at: of the same types
        chosen, equals = Selection(tokens, tokens), scratch.masses
    options |= {"SELECT": select, "NBP": NBP}
    block_masses[grid](*rows, chosen.limits, scratch.masses, equals, V, NB, PER=PER, **options)
    pick[(R,)](*rows, chosen.limits, chosen.ties, scratch.masses, equals, tokens, valid, V, NB, **options)


def _search(
    rows: tuple[Tensor, int, Tensor, int, Tensor], V: int, NB: int, edited: bool, among: Selection | None
) -> Selection:
    """What top_k keeps, or, among what it kept, top_p."""
    logits, _, *table_and_peaks = rows
    R, device = len(logits), logits.device
    tiles = 8 if R >= _WIDE_FROM else 2
    CH = _ceil(V, tiles * BLOCK)
    # Rows of a multiple of 16 bytes, as kernels are compiled again for tensors that begin elsewhere.
    lows = torch.empty(len(SHIFTS), _ceil(R, 4) * 4, dtype=torch.int32, device=device)
    partials = torch.empty(2, R, CH, THRESHOLDS.value, dtype=torch.int64, device=device)
    kept = torch.empty(R, CH, dtype=torch.int64, device=device)
    found = Selection(
        torch.empty(R, dtype=torch.int32, device=device), torch.empty(R, dtype=torch.int64, device=device)
    )
    before = among or found
    options = {"MASS": among is not None, "NBP": _power_of_two(NB), "num_warps": 4, "enable_fp_fusion": False}
    for index, shift in enumerate(SHIFTS):
        previous = max(index - 1, 0)
        search[(CH, R)](
            *rows, before.limits, before.ties, kept,
            lows[previous], lows[index], partials[previous % 2], partials[index % 2],
            V, NB, CH, tiles, shift, SHIFTS[previous],
            EDITED=edited, FIRST=index == 0, GROUPS=BLOCK // 8, **options,
        )  # fmt: skip
    last = len(SHIFTS) - 1
    resolve[(R,)](
        *table_and_peaks, before.limits, before.ties, kept, lows[last], partials[last % 2],
        found.limits, found.ties, V, NB, CH, **options,
    )  # fmt: skip
    return found


def _ceil(a: int, b: int) -> int:
    return -(-a // b)


def _power_of_two(n: int) -> int:
    return 1 << (n - 1).bit_length()
