# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"
"""The kernel that applies penalties from counts. Imports Triton."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def penalize(scores, counts, places, penalties, S, V, BLOCK: tl.constexpr):
    """Grid (V / BLOCK, S). scores: [S, V] float32, in place; counts: [places, V] int32; places: [S] int64;
    penalties: [3, S] float32. A count's bit 30 says "in the prompt", the bits below count in the answer."""
    row = tl.program_id(1).to(tl.int64)
    place = tl.load(places + row)
    if place < 0:
        return
    ids = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = ids < V
    count = tl.load(counts + place * V + ids, mask=inside, other=0)
    repetition = tl.load(penalties + row)
    x = tl.load(scores + row * V + ids, mask=inside, other=0.0)
    x = tl.where(count != 0, tl.where(x > 0, tl.div_rn(x, repetition), x * repetition), x)
    output = count & 0x3FFFFFFF
    off = tl.load(penalties + S + row) + tl.load(penalties + 2 * S + row) * output.to(tl.float32)
    tl.store(scores + row * V + ids, tl.where(output != 0, x - off, x), mask=inside)
