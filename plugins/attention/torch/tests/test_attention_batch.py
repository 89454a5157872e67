"""The kit's batches: hand-worked cases."""

from __future__ import annotations

import pytest

from pymllm.testing.attention_batch import make_attention_batch


def test_a_chunk_and_a_decode() -> None:
    batch = make_attention_batch([3, 1], [5, 9], [[7, 2, 9], [4, 6, 5]], page_size=4)
    assert batch.query_starts.tolist() == [0, 3, 4]
    assert batch.context_lens_d.tolist() == [5, 9]
    assert batch.page_table.tolist() == [[7, 2, 0], [4, 6, 5]]
    assert batch.slots.tolist() == [7 * 4 + 2, 7 * 4 + 3, 2 * 4, 5 * 4]
    assert not batch.decode_only


@pytest.mark.parametrize("query, context, pages", [(0, 1, [1]), (3, 2, [1]), (1, 5, [1])])
def test_impossible_requests_are_refused(query: int, context: int, pages: list[int]) -> None:
    with pytest.raises(ValueError, match=f"cannot compute {query} of {context} tokens in 1 pages of 4"):
        make_attention_batch([query], [context], [pages], page_size=4)


def test_lists_must_match() -> None:
    with pytest.raises(ValueError, match="one entry per request"):
        make_attention_batch([1], [1, 2], [[1]], page_size=4)
