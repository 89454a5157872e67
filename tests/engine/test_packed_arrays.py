"""Arrays of several types arrive whole, and what they leave of their fields is 0."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pymllm.engine.cuda.packed import PackedArrays

FIELDS = [(5, np.int64), (3, np.int32), (0, np.int64), (4, np.int32)]


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def packed(request) -> PackedArrays:
    return PackedArrays(torch.device(request.param), nbytes=64)


def send(packed: PackedArrays, first: list[int], second: list[int], fourth: list[int]) -> list[torch.Tensor]:
    return packed.send([np.array(values) for values in (first, second, [], fourth)], FIELDS)


def test_values_and_types(packed) -> None:
    found = send(packed, [1, 2, -(2**40)], [7, -8, 9], [2**31 - 1])
    assert [tensor.tolist() for tensor in found] == [[1, 2, -(2**40), 0, 0], [7, -8, 9], [], [2**31 - 1, 0, 0, 0]]
    assert [tensor.dtype for tensor in found] == [torch.int64, torch.int32, torch.int64, torch.int32]


def test_many_steps_and_the_place_stays(packed) -> None:
    places = [tensor.data_ptr() for tensor in send(packed, [1], [2], [3])]
    for step in range(20):
        found = send(packed, [step] * 5, [step + 1], [step + 2] * 4)
        assert [tensor.data_ptr() for tensor in found] == places
        assert [tensor.tolist() for tensor in found] == [[step] * 5, [step + 1, 0, 0], [], [step + 2] * 4]


def test_it_grows(packed) -> None:
    many = np.arange(100_000)
    [found] = packed.send([many], [(100_000, np.int64)])
    assert found.tolist() == many.tolist()


def test_smaller_fields_share_the_head(packed) -> None:
    packed.send([np.arange(5)], [(5, np.int64)])
    head, rest = packed.views([(2, np.int64), (1, np.int64)])
    assert (head.tolist(), rest.tolist()) == ([0, 1], [2])
