# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"
"""Three passes that draw a token of each row: block maxima, block masses, and the pick.

The weights, their integer sums and the order are those of :mod:`pymllm.engine.draw`. A row of V logits is
cut into NB blocks of BLOCK tokens. The block is the grain of what one pass leaves for the next, so the last
pass reads the logits of one block alone. Grids depend on shapes only and nothing is allocated: a CUDA graph
can hold every launch.

``table`` [.., width] is that of :mod:`pymllm.engine.kernels.layout`. A row takes part in a pass if its slope is not 0
(it draws) and its peak is finite; the last pass serves all. A token belongs to a row's selection if its distance key
is below the row's limit, or equals it and the token is among the first ``ties`` of those, by id (see
:mod:`pymllm.engine.kernels.search`).
"""

from __future__ import annotations

import triton
import triton.language as tl

from pymllm.engine.kernels import layout
from pymllm.engine.kernels.scores import edits_of, integer, integers_at, read_scores, real

WEIGHT_ONE = tl.constexpr(4398046511104.0)  # 2**42: pymllm.engine.draw.WEIGHT_ONE
ALL_KEYS = tl.constexpr(0x7FFFFFFF)
FAR = tl.constexpr(-43.0)  # exp2 of less is a weight of zero
LOW = tl.constexpr(0xFFFFFFFF)
PHILOX_0 = tl.constexpr(0xD2511F53)
PHILOX_1 = tl.constexpr(0xCD9E8D57)
WEYL_0 = tl.constexpr(0x9E3779B9)
WEYL_1 = tl.constexpr(0xBB67AE85)
UNIT = tl.constexpr(2.0**-53)
SLOPE = tl.constexpr(layout.SLOPE)
SEED = tl.constexpr(layout.SEED)
LEAST = tl.constexpr(layout.LEAST)
POSITION = tl.constexpr(layout.POSITION)
_INF = tl.constexpr(float("inf"))


@triton.jit
def row_slope(table, width, row):
    """A row's slope, float32."""
    return real(table, width, SLOPE, row).to(tl.float32)


@triton.jit
def row_peak(peaks, row, NB, NBP: tl.constexpr):
    """Maximum of a row from its block maxima [NB]; +inf if the row holds a NaN."""
    blocks = tl.arange(0, NBP)
    return tl.max(tl.load(peaks + row * NB + blocks, mask=blocks < NB, other=-_INF), axis=0)


@triton.jit
def is_finite(peak):
    """Whether a row with this peak can be sampled."""
    return (peak > -_INF) & (peak < _INF)


@triton.jit
def weigh(distance, slope):
    """Distances below the peak, float32, to 42-bit weights, int64."""
    return (tl.exp2(distance * slope) * WEIGHT_ONE).to(tl.int64)


@triton.jit
def distance_key(distance):
    """Non-negative floats as integers of the same order."""
    return distance.to(tl.int32, bitcast=True) & 0x7FFFFFFF


@triton.jit
def weigh_key(key, slope):
    """The weight of a token from its key; zero for keys that no token has."""
    return weigh(tl.minimum(key, 0x7F800000).to(tl.float32, bitcast=True), slope)


@triton.jit
def uniform(seed, position):
    """:func:`pymllm.engine.philox.uniforms` of int64 scalars -> float64."""
    key0 = seed.to(tl.uint64) & LOW
    key1 = seed.to(tl.uint64) >> 32
    c0 = position.to(tl.uint64) & LOW
    c1 = position.to(tl.uint64) >> 32
    c2 = tl.zeros([], tl.uint64)
    c3 = tl.zeros([], tl.uint64)
    for _ in tl.static_range(10):
        first = c0 * PHILOX_0
        second = c2 * PHILOX_1
        c0 = (second >> 32) ^ c1 ^ key0
        c1 = second & LOW
        c2 = (first >> 32) ^ c3 ^ key1
        c3 = first & LOW
        key0 = (key0 + WEYL_0) & LOW
        key1 = (key1 + WEYL_1) & LOW
    bits = ((c0 >> 5) << 26) | (c1 >> 6)
    return bits.to(tl.int64).to(tl.float64) * UNIT


@triton.jit(do_not_specialize=["width"])
def block_peaks(
    logits, stride, table, width, peaks, V, NB, EDITED: tl.constexpr, PER: tl.constexpr, BLOCK: tl.constexpr
):
    """Pass 1. Grid (NB / PER, R). logits: [R, V] -> peaks: [R, NB] float32; +inf stands for a NaN."""
    row = tl.program_id(1).to(tl.int64)
    blocks = tl.program_id(0) * PER + tl.arange(0, PER)
    ids = blocks[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    bias, counts = edits_of(table, width, row, EDITED)
    x = read_scores(logits, stride, table, width, row, ids, V, bias, counts)
    x = tl.where(x == x, x, _INF)
    tl.store(peaks + row * NB + blocks, tl.max(x, axis=1), mask=blocks < NB)


@triton.jit(do_not_specialize=["width"])
def block_masses(
    logits, stride, table, width, peaks, limits, masses, equals, V, NB,
    EDITED: tl.constexpr, SELECT: tl.constexpr, PER: tl.constexpr, BLOCK: tl.constexpr, NBP: tl.constexpr,
):  # fmt: skip
    """Pass 2. Grid (NB / PER, R). masses: [R, NB] int64, the weights of each block's tokens; with SELECT, of those
    with keys below ``limits`` [R] that weigh at least the row's least. equals: [R, NB] int32 (SELECT), how many
    tokens have the limit as key."""
    row = tl.program_id(1).to(tl.int64)
    slope = row_slope(table, width, row)
    if slope == 0.0:
        return
    peak = row_peak(peaks, row, NB, NBP)
    if not is_finite(peak):
        return
    blocks = tl.program_id(0) * PER + tl.arange(0, PER)
    inside = blocks < NB
    nearest = tl.max(tl.load(peaks + row * NB + blocks, mask=inside, other=-_INF), axis=0)
    far = (peak - nearest) * slope < FAR
    if SELECT:
        limit = tl.load(limits + row)
        far = far | (distance_key(peak - nearest) > limit)
    if far:
        tl.store(masses + row * NB + blocks, tl.zeros([PER], tl.int64), mask=inside)
        if SELECT:
            tl.store(equals + row * NB + blocks, tl.zeros([PER], tl.int32), mask=inside)
        return
    ids = blocks[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    bias, counts = edits_of(table, width, row, EDITED)
    distance = peak - read_scores(logits, stride, table, width, row, ids, V, bias, counts)
    weights = weigh(distance, slope)
    if SELECT:
        weights = tl.where(weights >= integer(table, width, LEAST, row), weights, 0)
        keys = distance_key(distance)
        tl.store(equals + row * NB + blocks, tl.sum((keys == limit).to(tl.int32), axis=1), mask=inside)
        weights = tl.where(keys < limit, weights, 0)
    tl.store(masses + row * NB + blocks, tl.sum(weights, axis=1), mask=inside)


@triton.jit
def _give(token, tokens, row, counts):
    """Store a row's token, and count it if the row has penalties."""
    tl.store(tokens + row, token.to(tl.int64))
    if counts != 0:
        tl.atomic_add(integers_at(counts) + token, 1)


@triton.jit(do_not_specialize=["width"])
def pick(
    logits, stride, table, width, peaks, limits, ties, masses, equals, tokens, valid, V, NB,
    EDITED: tl.constexpr, SELECT: tl.constexpr, BLOCK: tl.constexpr, NBP: tl.constexpr,
):  # fmt: skip
    """Pass 3. Grid (R,). -> tokens: [R] int64, valid: [R] int64.

    Greedy rows take the first of the largest logits; others the first token, by id, at which the running sum
    of kept weights exceeds number x total. The number is the uniform one of the row's seed and position."""
    row = tl.program_id(0).to(tl.int64)
    slope = row_slope(table, width, row)
    blocks = tl.arange(0, NBP)
    inside = blocks < NB
    tops = tl.load(peaks + row * NB + blocks, mask=inside, other=-_INF)
    peak = tl.max(tops, axis=0)
    tl.store(valid + row, is_finite(peak).to(tl.int64))
    if not is_finite(peak):
        tl.store(tokens + row, tl.zeros([], tl.int64))
        return
    bias, counts = edits_of(table, width, row, EDITED)
    places = tl.arange(0, BLOCK)
    if slope == 0.0:
        block = tl.min(tl.where(tops == peak, blocks, NBP), axis=0)
        ids = block * BLOCK + places
        x = read_scores(logits, stride, table, width, row, ids, V, bias, counts)
        _give(tl.min(tl.where(x == peak, ids, V), axis=0), tokens, row, counts)
        return

    mass = tl.load(masses + row * NB + blocks, mask=inside, other=0)
    least = integer(table, width, LEAST, row)
    if SELECT:
        limit = tl.load(limits + row)
        keep = tl.load(ties + row)
        tie_weight = weigh_key(limit, slope)
        tie_weight = tl.where(tie_weight >= least, tie_weight, 0)
        equal = tl.load(equals + row * NB + blocks, mask=inside, other=0).to(tl.int64)
        earlier = tl.cumsum(equal, axis=0) - equal
        mass += tl.minimum(tl.maximum(keep - earlier, 0), equal) * tie_weight
    running = tl.cumsum(mass, axis=0)
    total = tl.sum(mass, axis=0)
    number = uniform(integer(table, width, SEED, row), integer(table, width, POSITION, row))
    target = (number * total.to(tl.float64)).to(tl.int64)
    target = tl.minimum(target, total - 1)
    block = tl.sum((running <= target).to(tl.int32), axis=0)
    target -= tl.sum(tl.where(blocks < block, mass, 0), axis=0)

    ids = block * BLOCK + places
    distance = peak - read_scores(logits, stride, table, width, row, ids, V, bias, counts)
    weights = weigh(distance, slope)
    if SELECT:
        weights = tl.where(weights >= least, weights, 0)
        keys = distance_key(distance)
        equal = (keys == limit).to(tl.int64)
        keep -= tl.sum(tl.where(blocks == block, earlier, 0), axis=0)
        kept = (keys < limit) | ((keys == limit) & (tl.cumsum(equal, axis=0) <= keep))
        weights = tl.where(kept, weights, 0)
    token = block * BLOCK + tl.sum((tl.cumsum(weights, axis=0) <= target).to(tl.int32), axis=0)
    _give(tl.minimum(token, V - 1), tokens, row, counts)
