"""Which kernel serves what, what it needs, and what is refused."""

from __future__ import annotations

import pytest

from pymllm_attention_flashinfer.kernels import Heads
from pymllm_attention_flashinfer.plugin import Decode
from pymllm_attention_flashinfer.policy import decodes_on_cuda_cores, graph_plan_bytes, partial_bytes


@pytest.mark.parametrize("query, kv", [(7, 1), (20, 4), (48, 8), (128, 8)])
def test_a_group_that_cuda_cores_do_not_cover_decodes_on_tensor_cores(query: int, kv: int) -> None:
    heads = Heads(query, kv, 128)
    assert not decodes_on_cuda_cores(Decode.auto, heads)
    with pytest.raises(ValueError, match=f"cuda_cores cannot serve {query // kv} query heads"):
        decodes_on_cuda_cores(Decode.cuda_cores, heads)


@pytest.mark.parametrize("group", [1, 2, 3, 4, 8])
def test_the_wish_is_followed(group: int) -> None:
    heads = Heads(8 * group, 8, 128)
    assert decodes_on_cuda_cores(Decode.cuda_cores, heads)
    assert not decodes_on_cuda_cores(Decode.tensor_cores, heads)


def test_partial_results_have_room() -> None:
    """The library's own sums for 132 multiprocessors, [blocks, rows of a tile, D] and a logarithm each."""
    row = 4 * (128 + 1)
    chunks_of_qwen3 = 16 * (2 * 132 // 8) * 128 * row
    assert partial_bytes(Heads(16, 8, 128), 132, 0) >= chunks_of_qwen3
    captured_on_tensor_cores = 32 * (256 * 4 // 16 + 255) * 16 * row
    assert partial_bytes(Heads(32, 8, 128), 132, 256) >= captured_on_tensor_cores


def test_captured_plans_have_room() -> None:
    for requests in (1, 256, 4096):
        blocks = max(32 * 132, 2 * requests)
        assert graph_plan_bytes(requests) >= 13 * blocks + 8 * requests
