"""What the kernels are told of a step: hand-worked cases, and the kernels' own arithmetic on them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from pymllm.interfaces import AttentionBatch, GraphKey
from pymllm.testing.attention_batch import make_attention_batch
from pymllm_attention_flashinfer.requests import Requests, divide, padded

PAGE = 4


def batch(query_lens: list[int], context_lens: list[int]) -> AttentionBatch:
    pages = [[10 * i + j + 1 for j in range(-(-context // PAGE))] for i, context in enumerate(context_lens)]
    return make_attention_batch(query_lens, context_lens, pages, PAGE)


def test_decodes_alone() -> None:
    decodes, chunks = divide(batch([1, 1, 1], [9, 4, 5]), PAGE)
    assert chunks is None
    assert decodes is not None
    assert (decodes.row, decodes.rows, decodes.number) == (0, 3, 3)
    assert decodes.query_starts.tolist() == [0, 1, 2, 3]
    assert decodes.page_starts.tolist() == [0, 3, 4, 6]
    assert decodes.table_starts.tolist() == [0, 3, 6, 9]
    # Three pages of 4 are assumed for all: 8 tokens before "the last page".
    assert decodes.last_page_lens.tolist() == [1, -4, -3]


def test_chunks_follow_decodes() -> None:
    decodes, chunks = divide(batch([1, 1, 5, 2], [9, 4, 5, 6]), PAGE)
    assert decodes is not None
    assert (decodes.row, decodes.rows, decodes.number) == (0, 2, 2)
    assert decodes.context_lens.tolist() == [9, 4]
    assert chunks is not None
    assert (chunks.row, chunks.rows, chunks.number) == (2, 7, 2)
    assert chunks.query_starts.tolist() == [0, 5, 7]
    assert chunks.page_starts.tolist() == [0, 2, 4]
    assert chunks.table_starts.tolist() == [6, 9, 12]
    assert chunks.context_lens.tolist() == [5, 6]
    assert chunks.last_page_lens.tolist() == [-3, -2]


def test_a_late_decode_is_a_chunk_of_one_token() -> None:
    decodes, chunks = divide(batch([3, 1], [3, 8]), PAGE)
    assert decodes is None
    assert chunks is not None
    assert chunks.query_starts.tolist() == [0, 3, 4]
    assert chunks.page_starts.tolist() == [0, 1, 3]


def test_other_lengths_in_the_same_arrays() -> None:
    decodes, _ = divide(batch([1, 1, 1], [9, 4, 5]), PAGE)
    expected, _ = divide(batch([1, 1, 1], [3, 12, 8]), PAGE)
    assert decodes is not None
    assert expected is not None
    kept = decodes.page_starts
    decodes.change([1, 1, 1], [3, 12, 8], PAGE)
    assert decodes.page_starts is kept
    for name in decodes._fields:
        np.testing.assert_array_equal(getattr(decodes, name), getattr(expected, name))


def test_prompts_that_are_padded() -> None:
    """Three prompts of four, 20 tokens of 32; then one: the others have no tokens and no context."""
    first = replace(batch([7, 2, 11], [9, 2, 20]), graph_key=GraphKey(4, 32))
    prompts = padded(first, PAGE)
    assert (prompts.row, prompts.rows, prompts.number, prompts.decodes) == (0, 32, 4, False)
    assert prompts.query_starts.tolist() == [0, 7, 9, 20, 20]
    assert prompts.context_lens.tolist() == [9, 2, 20, 0]
    assert prompts.page_starts.tolist() == [0, 3, 4, 9, 9]
    assert prompts.table_starts.tolist() == [0, 5, 10, 15, 20]
    assert prompts.last_page_lens.tolist() == [-7, -14, 4, -16]  # beside the 16 tokens of four whole pages
    prompts.change([5], [5], PAGE)
    assert prompts.query_starts.tolist() == [0, 5, 5, 5, 5]
    assert prompts.page_starts.tolist() == [0, 2, 2, 2, 2]
    assert prompts.last_page_lens.tolist() == [-11, -16, -16, -16]


@pytest.mark.parametrize("width", [3, 7, 5000])
def test_the_kernels_find_length_and_pages(width: int) -> None:
    """The device code's arithmetic: unsigned 32-bit, with a page table wider than any request."""
    step = batch([1, 1, 6], [9, 4, 11])
    table = torch.full((3, width), 99, dtype=torch.int32)
    table[:, :3] = step.page_table
    step.page_table = table
    found = []
    for part in divide(step, PAGE):
        assert part is not None
        found += [_pages_read(part, i, table.numpy().ravel()) for i in range(part.number)]
    assert found == [(9, [1, 2, 3]), (4, [11]), (11, [21, 22, 23])]


def _pages_read(part: Requests, index: int, page_ids: np.ndarray) -> tuple[int, list[int]]:
    starts, last = part.table_starts.astype(np.uint32), part.last_page_lens.astype(np.uint32)
    with np.errstate(over="ignore"):
        length = int((starts[index + 1] - starts[index] - np.uint32(1)) * np.uint32(PAGE) + last[index])
    pages = [int(page_ids[int(starts[index]) + token // PAGE]) for token in range(0, length, PAGE)]
    return length, pages
