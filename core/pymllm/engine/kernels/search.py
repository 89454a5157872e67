# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"
"""What top_k and top_p keep: the key, and the number of ties, at which a running sum over ranked tokens
reaches a target. The same result as :func:`pymllm.engine.rank_select.select_by_radix`.

The 31-bit key is found from the top, at most 4 bits a pass: a pass sums, over the whole row, the amounts of
tokens with keys below 16 thresholds, and the next one starts from the largest threshold whose sum is still
below the target. A block whose likeliest token is beyond all thresholds is not read. There are no atomics,
no sort and no list of candidates, so a flat distribution, of which most is kept, costs little more than a
peaked one. A row that asks for nothing leaves each pass at once.
"""

from __future__ import annotations

import triton
import triton.language as tl

from pymllm.engine.kernels import layout
from pymllm.engine.kernels.passes import ALL_KEYS, FAR, distance_key, is_finite, row_peak, row_slope, weigh, weigh_key
from pymllm.engine.kernels.scores import edits_of, integer, read_scores, real

SHIFTS = (27, 23, 19, 15, 11, 7, 3, 0)
"""Of each pass's thresholds. The last pass settles 3 bits; its thresholds from the eighth on repeat what is known."""

THRESHOLDS = tl.constexpr(16)
CHUNKS = tl.constexpr(32)
"""Chunks whose sums are read at a time."""

TOP_K = tl.constexpr(layout.TOP_K)
TOP_P = tl.constexpr(layout.TOP_P)
_INF = tl.constexpr(float("inf"))


@triton.jit
def _below(keys, amounts, limit):
    return tl.sum(tl.where(keys < limit, amounts, 0), axis=1)


@triton.jit
def _below_2(keys, amounts, limit, step):
    return tl.join(_below(keys, amounts, limit), _below(keys, amounts, limit + step))


@triton.jit
def _below_4(keys, amounts, limit, step):
    return tl.join(_below_2(keys, amounts, limit, step), _below_2(keys, amounts, limit + 2 * step, step))


@triton.jit
def _below_8(keys, amounts, limit, step):
    return tl.join(_below_4(keys, amounts, limit, step), _below_4(keys, amounts, limit + 4 * step, step))


@triton.jit
def _below_16(keys, amounts, limit, step):
    """Sums, over the last axis of keys [G, 8], below limit + i step: [G, 16] in some order of i.
    (Two tokens' sums in one thread cost no exchange; the joins cost nothing at all.)"""
    sums = tl.join(_below_8(keys, amounts, limit, step), _below_8(keys, amounts, limit + 8 * step, step))
    return tl.reshape(sums, [keys.shape[0], 16])


@triton.jit
def _wanted(table, width, row, MASS: tl.constexpr):
    """A row's top_p, float64 (MASS), or its top_k, int64."""
    if MASS:
        want = real(table, width, TOP_P, row)
    else:
        want = integer(table, width, TOP_K, row)
    return want


@triton.jit
def _asks(want, slope, peak, V, MASS: tl.constexpr):
    """Whether a row draws, can be sampled, and has a top_p below 1 (MASS) or a top_k below V."""
    asks = (slope != 0.0) & is_finite(peak)
    if MASS:
        asks = asks & (want < 1.0)
    else:
        asks = asks & (want < V)
    return asks


@triton.jit
def _advance(partials, row, low, shift, target, CH):
    """The largest threshold of the last pass (from ``low``, 1 << shift apart) whose sum is below the target,
    and that sum."""
    columns = tl.arange(0, THRESHOLDS)[None, :]
    sums = tl.zeros([THRESHOLDS], tl.int64)
    for first in range(0, CH, CHUNKS):
        chunks = first + tl.arange(0, CHUNKS)[:, None]
        part = tl.load(partials + (row * CH + chunks) * THRESHOLDS + columns, mask=chunks < CH, other=0)
        sums += tl.sum(part, axis=0)
    digit = tl.sum((sums < target).to(tl.int32), axis=0) - 1
    return low + (digit << shift), tl.max(tl.where(sums < target, sums, 0), axis=0)


@triton.jit
def _mass_target(kept, top_p, slope, limits, ties, row, CH):
    """The least integer mass that is top_p of what top_k kept."""
    total = tl.load(ties + row) * weigh_key(tl.load(limits + row), slope)
    for first in range(0, CH, CHUNKS):
        chunks = first + tl.arange(0, CHUNKS)
        total += tl.sum(tl.load(kept + row * CH + chunks, mask=chunks < CH, other=0), axis=0)
    return tl.ceil(top_p * total.to(tl.float64)).to(tl.int64)


@triton.jit(do_not_specialize=["width", "CH", "tiles", "shift", "last_shift"])
def search(
    logits, stride, table, width, peaks, limits, ties, kept, lows_in, lows_out, partials_in, partials_out,
    V, NB, CH, tiles, shift, last_shift,
    EDITED: tl.constexpr, MASS: tl.constexpr, FIRST: tl.constexpr, GROUPS: tl.constexpr, NBP: tl.constexpr,
):  # fmt: skip
    """One pass. Grid (CH, R): a program reads ``tiles`` blocks of GROUPS x 8 tokens, those that can matter.

    MASS: for top_p, amounts are weights; else for top_k, amounts are 1. limits, ties: [R], of top_k (MASS).
    kept: [R, CH] int64, the mass below that limit, written by the first pass. lows: [R] int32, keys. partials:
    [R, CH, 16] int64."""
    row = tl.program_id(1).to(tl.int64)
    chunk = tl.program_id(0)
    want = _wanted(table, width, row, MASS)
    slope = row_slope(table, width, row)
    peak = row_peak(peaks, row, NB, NBP)
    if not _asks(want, slope, peak, V, MASS):
        return
    low = tl.zeros([], tl.int32)
    if not FIRST:
        target = want
        if MASS:
            target = _mass_target(kept, want, slope, limits, ties, row, CH)
        low, _ = _advance(partials_in, row, tl.load(lows_in + row), last_shift, target, CH)
    if chunk == 0:
        tl.store(lows_out + row, low)
    if MASS:
        limit = tl.load(limits + row)

    bias, counts = edits_of(table, width, row, EDITED)
    sums = tl.zeros([GROUPS, 16], tl.int64)
    under = tl.zeros([GROUPS], tl.int64)
    places = tl.arange(0, GROUPS)[:, None] * 8 + tl.arange(0, 8)[None, :]
    high = low.to(tl.int64) + (tl.full([], 16, tl.int64) << shift)  # above every threshold
    for tile in range(tiles):
        block = chunk * tiles + tile
        nearest = peak - tl.load(peaks + row * NB + block, mask=block < NB, other=-_INF)
        matters = distance_key(nearest) < high
        if MASS:
            matters = matters & (nearest * slope >= FAR)
            if FIRST:
                matters = nearest * slope >= FAR
        if matters:
            ids = block * (GROUPS * 8) + places
            distance = peak - read_scores(logits, stride, table, width, row, ids, V, bias, counts)
            keys = distance_key(distance)
            if MASS:
                weights = weigh(distance, slope)
                if FIRST:
                    under += _below(keys, weights, limit)
                sums += _below_16(keys, weights, low, 1 << shift)
            else:
                sums += _below_16(keys, tl.full(keys.shape, 1, tl.int32), low, 1 << shift)
    columns = tl.arange(0, THRESHOLDS)
    tl.store(partials_out + (row * CH + chunk) * THRESHOLDS + columns, tl.sum(sums, axis=0))
    if MASS and FIRST:
        tl.store(kept + row * CH + chunk, tl.sum(under, axis=0))


@triton.jit(do_not_specialize=["width", "CH"])
def resolve(
    table, width, peaks, limits, ties, kept, lows, partials, limits_out, ties_out, V, NB, CH,
    MASS: tl.constexpr, NBP: tl.constexpr,
):  # fmt: skip
    """After the last pass (shift 0). Grid (R,). limits_out: [R] int32, ties_out: [R] int64 of each row; of one
    that asks for nothing, those of top_k (MASS), or all tokens."""
    row = tl.program_id(0).to(tl.int64)
    want = _wanted(table, width, row, MASS)
    slope = row_slope(table, width, row)
    limit = tl.full([], ALL_KEYS, tl.int32)
    tie = tl.zeros([], tl.int64)
    if MASS:
        limit = tl.load(limits + row)
        tie = tl.load(ties + row)
    if _asks(want, slope, row_peak(peaks, row, NB, NBP), V, MASS):
        target = want
        if MASS:
            target = _mass_target(kept, want, slope, limits, ties, row, CH)
        limit, before = _advance(partials, row, tl.load(lows + row), 0, target, CH)
        tie = target - before
        if MASS:
            weight = tl.maximum(weigh_key(limit, slope), 1)
            tie = (tie + weight - 1) // weight
    tl.store(limits_out + row, limit)
    tl.store(ties_out + row, tie)
