"""A decode step's inputs, completed on the device by one kernel."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024


@triton.jit
def _prepare(
    inputs, inputs_stride, last_tokens, tables, width, page_size,
    token_ids, slots, context_lens, page_table, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    part = tl.program_id(1)
    slot = tl.load(inputs + inputs_stride + row)
    pages = tables + slot * width
    columns = part * BLOCK + tl.arange(0, BLOCK)
    inside = columns < width
    tl.store(page_table + row.to(tl.int64) * width + columns, tl.load(pages + columns, mask=inside), mask=inside)
    if part == 0:
        token = tl.load(inputs + row)
        position = tl.load(inputs + 2 * inputs_stride + row)
        tl.store(token_ids + row, tl.where(token < 0, tl.load(last_tokens + slot), token))
        page = tl.load(pages + position // page_size).to(tl.int64)
        tl.store(slots + row, page * page_size + position % page_size)
        tl.store(context_lens + row, (position + 1).to(tl.int32))


def prepare_decode(
    inputs: Tensor,
    last_tokens: Tensor,
    tables: Tensor,
    page_size: int,
    *,
    token_ids: Tensor,
    slots: Tensor,
    context_lens: Tensor,
    page_table: Tensor,
) -> None:
    """Fill what a decode batch of R rows needs.

    inputs: [3 or more, width] int64: token id (-1: the one that the slot's last step sampled), request slot and
    position of each row. last_tokens: [slots + 1] int64. tables: [slots + 1, P] int32.
    Written: token_ids, slots (of the KV cache) [R] int64; context_lens [R], page_table [R, P] int32.
    """
    rows, width = len(token_ids), tables.shape[1]
    _prepare[(rows, triton.cdiv(width, BLOCK))](
        inputs, inputs.stride(0), last_tokens, tables, width, page_size,
        token_ids, slots, context_lens, page_table, BLOCK=BLOCK,
    )  # fmt: skip
