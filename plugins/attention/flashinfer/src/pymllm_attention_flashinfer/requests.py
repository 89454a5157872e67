"""What FlashInfer is told of a step, worked out on the host: NumPy alone, nothing here touches a device.

A page table [R, P] is already the list of pages that the kernels take, if they are told that every request
has P pages: request i's list starts at i * P. They take a request's length for
(its pages - 1) * page_size + the tokens on its last page, in 32-bit arithmetic that wraps around, so the
tokens "on the last page" may be negative and make up for the pages it does not have. Nothing is gathered.
How work is divided is planned by the pages that a request really has.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pymllm.interfaces import AttentionBatch

Ints = NDArray[np.int32]


class Requests(NamedTuple):
    """Some requests of a step, one after another, N of them, that one kernel serves.

    row, rows: where their new tokens begin, and how many they have.
    query_starts: [N + 1], from 0. page_starts: [N + 1], of the pages that they really have, from 0.
    context_lens: [N]. table_starts: [N + 1], where a request's row of the page table starts in memory.
    last_page_lens: [N], as explained above.
    """

    row: int
    rows: int
    query_starts: Ints
    page_starts: Ints
    context_lens: Ints
    table_starts: Ints
    last_page_lens: Ints

    @property
    def number(self) -> int:
        """N."""
        return len(self.context_lens)

    @property
    def decodes(self) -> bool:
        """Whether each request has one new token."""
        return self.rows == len(self.context_lens)

    def change(self, query_lens: Sequence[int], context_lens: Sequence[int], page_size: int) -> None:
        """Put other lengths into the arrays, in place; requests beyond those given have no tokens."""
        count = len(context_lens)
        self.context_lens[:count] = context_lens
        self.context_lens[count:] = 0
        width = int(self.table_starts[1] - self.table_starts[0])
        np.subtract(self.context_lens, (width - 1) * page_size, out=self.last_page_lens)
        pages = self.page_starts[1:]
        np.add(self.context_lens, page_size - 1, out=pages)
        np.floor_divide(pages, page_size, out=pages)
        np.add.accumulate(pages, out=pages)
        if not self.decodes:
            np.add.accumulate(query_lens, out=self.query_starts[1 : count + 1])
            self.query_starts[count + 1 :] = self.query_starts[count]


def padded(batch: AttentionBatch, page_size: int) -> Requests:
    """The requests of a captured step, those of padding included."""
    assert batch.graph_key is not None, "a captured step has a key"
    number, tokens = batch.graph_key
    width = batch.page_table.shape[1]
    requests = Requests(
        row=0,
        rows=tokens,
        query_starts=np.arange(number + 1, dtype=np.int32),
        page_starts=np.zeros(number + 1, dtype=np.int32),
        context_lens=np.zeros(number, dtype=np.int32),
        table_starts=np.arange(0, (number + 1) * width, width, dtype=np.int32),
        last_page_lens=np.zeros(number, dtype=np.int32),
    )
    requests.change(batch.query_lens, batch.context_lens, page_size)
    return requests


def divide(batch: AttentionBatch, page_size: int) -> tuple[Requests | None, Requests | None]:
    """The decodes at the head of a batch, and all that follows from the first prefill chunk on; None if empty.

    The scheduler puts decodes first; one that comes late is computed with the chunks, as a chunk of one token.
    """
    query_lens = batch.query_lens
    count = len(query_lens)
    decodes = count if batch.decode_only else next(i for i, tokens in enumerate(query_lens) if tokens > 1)
    lens = np.array(batch.context_lens, dtype=np.int32)
    width = batch.page_table.shape[1]
    last = lens - (width - 1) * page_size
    pages = _starts((lens + (page_size - 1)) // page_size)
    tables = np.arange(0, (count + 1) * width, width, dtype=np.int32)

    def part(first: int, end: int) -> Requests | None:
        if first == end:
            return None
        if first < decodes:
            starts = np.arange(end + 1, dtype=np.int32)
        else:
            starts = _starts(np.array(query_lens[first:], dtype=np.int32))
        return Requests(
            row=first,  # before the chunks each request has one row
            rows=int(starts[-1]),
            query_starts=starts,
            page_starts=pages[first : end + 1] - pages[first],
            context_lens=lens[first:end],
            table_starts=tables[first : end + 1],
            last_page_lens=last[first:end],
        )

    return part(0, decodes), part(decodes, count)


def _starts(lens: Ints) -> Ints:
    """[N + 1]: 0 and the running sums."""
    starts = np.zeros(len(lens) + 1, dtype=np.int32)
    np.add.accumulate(lens, out=starts[1:])
    return starts
