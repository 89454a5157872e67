"""Which kernel serves what, what it needs, and what is refused."""

from __future__ import annotations

import pytest

from pymllm.testing.attention_batch import make_attention_batch
from pymllm_attention_flashinfer.kernels import Heads
from pymllm_attention_flashinfer.plugin import Decode
from pymllm_attention_flashinfer.policy import decodes_on_cuda_cores, gathers_prompts, graph_plan_bytes, partial_bytes
from pymllm_attention_flashinfer.requests import divide


@pytest.mark.parametrize("query, kv", [(7, 1), (20, 4), (48, 8), (128, 8)])
def test_a_group_that_cuda_cores_do_not_cover_decodes_on_tensor_cores(query: int, kv: int) -> None:
    heads = Heads(query, kv, 128)
    assert not decodes_on_cuda_cores(Decode.auto, heads, 1)
    with pytest.raises(ValueError, match=f"cuda_cores cannot serve {query // kv} query heads"):
        decodes_on_cuda_cores(Decode.cuda_cores, heads, 1)


@pytest.mark.parametrize("group", [1, 2, 3, 4, 8])
def test_the_wish_is_followed(group: int) -> None:
    heads = Heads(8 * group, 8, 128)
    assert decodes_on_cuda_cores(Decode.cuda_cores, heads, 100)
    assert not decodes_on_cuda_cores(Decode.tensor_cores, heads, 1)


@pytest.mark.parametrize("group, requests, cuda_cores", [(2, 1, True), (2, 32, True), (2, 33, False), (4, 1, False)])
def test_auto_takes_the_faster_kernel(group: int, requests: int, cuda_cores: bool) -> None:
    assert decodes_on_cuda_cores(Decode.auto, Heads(8 * group, 8, 128), requests) is cuda_cores


@pytest.mark.parametrize(
    "heads, query_lens, context_lens, gathers",
    [
        (16, [8192], [8192], True),
        (16, [4096], [4096], True),
        (16, [4095], [4095], False),
        (32, [2048], [2048], True),
        (16, [1024] * 8, [1024] * 8, False),
        (16, [6000, 100], [6000, 100], True),  # (6000^2 + 100^2) / 6100 = 5903 tokens on average
        (16, [8192], [8200], False),
    ],
)
def test_long_prompts_without_a_prefix_are_gathered(
    heads: int, query_lens: list[int], context_lens: list[int], gathers: bool
) -> None:
    pages = [list(range(-(-context // 16))) for context in context_lens]
    _, chunks = divide(make_attention_batch(query_lens, context_lens, pages, 16), 16)
    assert chunks is not None
    assert gathers_prompts(Heads(heads, 8, 128), chunks) is gathers


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
