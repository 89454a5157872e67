# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"
"""Reads of a row's parameters, and of its logits with its edits applied. Imports Triton.

Edits are applied wherever logits are read, each rounding on its own (kernels are compiled without fused multiply-adds),
so every pass sees the same scores, and no copy of the logits is made. They are those of
:class:`pymllm.engine.logit_edits.LogitEdits`, in the same order.
"""

from __future__ import annotations

import triton
import triton.language as tl

from pymllm.engine.kernels import layout

REPETITION = tl.constexpr(layout.REPETITION)
PRESENCE = tl.constexpr(layout.PRESENCE)
FREQUENCY = tl.constexpr(layout.FREQUENCY)
BIAS = tl.constexpr(layout.BIAS)
COUNTS = tl.constexpr(layout.COUNTS)
IN_ANSWER = tl.constexpr(layout.IN_PROMPT - 1)
_INF = tl.constexpr(float("inf"))


@triton.jit
def integer(table, width, name: tl.constexpr, row):
    """A cell of the table, int64."""
    return tl.load(table + name * width + row)


@triton.jit
def real(table, width, name: tl.constexpr, row):
    """A cell of the table, float64."""
    return integer(table, width, name, row).to(tl.float64, bitcast=True)


@triton.jit
def floats_at(address):
    """A pointer to the first of a tensor's float32 from its address, int64."""
    return tl.multiple_of(address.to(tl.pointer_type(tl.float32)), 16)


@triton.jit
def integers_at(address):
    """A pointer to the first of a tensor's int32 from its address, int64."""
    return tl.multiple_of(address.to(tl.pointer_type(tl.int32)), 16)


@triton.jit
def edits_of(table, width, row, EDITED):
    """Addresses of a row's bias and counts, int64, 0 for none."""
    bias = tl.zeros([], tl.int64)
    counts = tl.zeros([], tl.int64)
    if EDITED:
        bias = integer(table, width, BIAS, row)
        counts = integer(table, width, COUNTS, row)
    return bias, counts


@triton.jit
def read_scores(logits, stride, table, width, row, ids, V, bias, counts):
    """A row's logits at ``ids``, float32, edited; -inf outside the vocabulary."""
    inside = ids < V
    x = tl.load(logits + row * stride + ids, mask=inside, other=-_INF).to(tl.float32)
    if bias != 0:
        x += tl.load(floats_at(bias) + ids, mask=inside, other=0.0)
    if counts != 0:
        count = tl.load(integers_at(counts) + ids, mask=inside, other=0)
        x = _penalize(x, count, table, width, row)
    return x


@triton.jit
def _penalize(x, count, table, width, row):
    repetition = real(table, width, REPETITION, row).to(tl.float32)
    x = tl.where(count != 0, tl.where(x > 0, tl.div_rn(x, repetition), x * repetition), x)
    answered = count & IN_ANSWER
    frequency = real(table, width, FREQUENCY, row).to(tl.float32)
    off = real(table, width, PRESENCE, row).to(tl.float32) + frequency * answered.to(tl.float32)
    return tl.where(answered != 0, x - off, x)
