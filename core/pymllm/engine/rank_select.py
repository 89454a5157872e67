"""Weighted selection by rank, without a sort of the whole vocabulary: what top_k and top_p keep.

Both functions answer the same question with the same result: which tokens, ranked by key (the smallest
first) and then by id, have less than ``target`` of the amounts ranked before them? With amounts of 1 these
are the first ``target`` tokens. keys: [R, V] int32, >= 0. amounts: [R, V] int64, >= 0. target: [R, 1] int64,
from 1 to the row's sum. Returns [R, V] bool.
"""

from __future__ import annotations

import torch
from torch import Tensor

_KEY_BITS = 31
_BIN_SHIFT = 18
_RADIX_STEPS = ((20, 11), (10, 10), (0, 10))  # (shift, bits) that cover the key


def select_by_bin(keys: Tensor, amounts: Tensor, target: Tensor) -> Tensor:
    """A histogram over the keys' leading bits finds the bin in which the running sum reaches the target;
    only that bin is sorted. Fast on a CPU; its shapes depend on the data, so a GPU would wait for them."""
    bins = (keys >> _BIN_SHIFT).long()
    histogram = amounts.new_zeros(len(keys), 1 << (_KEY_BITS - _BIN_SHIFT)).scatter_add_(1, bins, amounts)
    running = histogram.cumsum(-1)
    limit = _first_reaching(running, target)
    kept = bins < limit

    rows, ids = (bins == limit).nonzero(as_tuple=True)
    order = ((rows << _KEY_BITS) | keys[rows, ids]).sort(stable=True).indices
    rows, ids = rows[order], ids[order]
    amount = amounts[rows, ids]
    # One running sum goes through all rows' bins: take off what it holds at a row's start.
    start = running.gather(1, limit) - histogram.gather(1, limit).cumsum(0)
    kept[rows, ids] = amount.cumsum(0) - amount + start[rows, 0] < target[rows, 0]
    return kept


def select_by_radix(keys: Tensor, amounts: Tensor, target: Tensor) -> Tensor:
    """Three histograms, digit by digit, find the key at which the running sum reaches the target. Shapes
    depend on nothing but the input's, so it never waits for a GPU and can be captured in a graph."""
    limit = torch.zeros_like(target, dtype=torch.int32)
    before = torch.zeros_like(target)
    live = amounts
    for shift, bits in _RADIX_STEPS:
        digits = ((keys >> shift) & ((1 << bits) - 1)).long()
        histogram = amounts.new_zeros(len(keys), 1 << bits).scatter_add_(1, digits, live)
        running = histogram.cumsum(-1).add_(before)
        digit = _first_reaching(running, target)
        before = (running - histogram).gather(1, digit)
        limit = (limit << bits) | digit.int()
        live = amounts * (keys >> shift == limit)
    ties_before = live.cumsum(-1).sub_(live).add_(before)
    return (keys < limit) | ((keys == limit) & (ties_before < target))


def _first_reaching(running: Tensor, target: Tensor) -> Tensor:
    """Index of the first running sum that is at least the target. [R, N], [R, 1] -> [R, 1]."""
    return (running < target).sum(-1, keepdim=True).clamp_max_(running.shape[1] - 1)
