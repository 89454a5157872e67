"""Decodes are grouped so that padding stays small and every request is in one group."""

from __future__ import annotations

import random

from pymllm_attention_torch.plan import FREE_PADDING, GROUP_TOKENS, group_by_length


def test_similar_lengths_stay_together() -> None:
    assert group_by_length([0, 1, 2], [300, 310, 290]) == [[0, 1, 2]]


def test_a_long_one_is_computed_apart() -> None:
    assert group_by_length([0, 1, 2, 3], [20, 4000, 25, 30]) == [[1], [0, 2, 3]]


def test_only_members_are_grouped() -> None:
    assert group_by_length([1, 3], [5, 6, 7, 8]) == [[1, 3]]


def test_no_members_no_groups() -> None:
    assert group_by_length([], [5, 6]) == []


def test_padding_and_size_are_bounded() -> None:
    lengths = [random.Random(i).randint(1, 3000) for i in range(100)]
    groups = group_by_length(range(100), lengths)
    assert sorted(i for group in groups for i in group) == list(range(100))
    for group in groups:
        longest = max(lengths[i] for i in group)
        padding = sum(longest - lengths[i] for i in group)
        assert padding <= max(FREE_PADDING, longest * len(group) // 8)
        assert len(group) == 1 or longest * len(group) <= GROUP_TOKENS + longest
