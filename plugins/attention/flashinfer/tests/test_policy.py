"""Which kernel serves what, what it needs, and what is refused."""

from __future__ import annotations

import pytest
import torch

from pymllm.errors import ConfigError
from pymllm.interfaces import KVDtype
from pymllm.testing.attention_batch import make_attention_batch
from pymllm_attention_flashinfer.kernels import Heads, Types
from pymllm_attention_flashinfer.plugin import Decode, FlashInferOptions, Prefill
from pymllm_attention_flashinfer.policy import (
    gathers_prompts,
    graph_plan_bytes,
    own_decode,
    partial_bytes,
    prefill_generation,
    refuse_with_codes,
)
from pymllm_attention_flashinfer.requests import divide
from pymllm_attention_flashinfer.select import Kernels

CUDA, BF16, FP8 = torch.device("cuda"), torch.bfloat16, torch.float8_e4m3fn


@pytest.fixture(params=[(9, 0), (8, 7)], ids=["hopper", "orin"])
def hopper(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """A GPU that is said to be there. Whether it is a Hopper."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: request.param)
    return request.param == (9, 0)


def test_prefill_is_fa3_on_a_hopper_unless_the_cache_is_fp8(hopper: bool) -> None:
    assert prefill_generation(Prefill.auto, CUDA, BF16) == ("fa3" if hopper else "fa2")
    for wanted in (Prefill.auto, Prefill.fa2):
        assert prefill_generation(wanted, CUDA, FP8) == "fa2"
    assert prefill_generation(Prefill.fa2, CUDA, BF16) == "fa2"


def test_fa3_is_refused_where_it_cannot_run(hopper: bool) -> None:
    reason = r"attention\.prefill: fa3 cannot read .* fp8" if hopper else r"attention\.prefill: fa3 needs a Hopper"
    with pytest.raises(ConfigError, match=reason):
        prefill_generation(Prefill.fa3, CUDA, FP8)
    if hopper:
        assert prefill_generation(Prefill.fa3, CUDA, BF16) == "fa3"


@pytest.mark.parametrize("kind", [KVDtype.int8, KVDtype.int4])
def test_kernels_that_cannot_read_codes_are_refused(kind: KVDtype) -> None:
    for decode in (Decode.auto, Decode.triton):
        refuse_with_codes(FlashInferOptions(decode=decode), kind)
    with pytest.raises(ConfigError, match=rf"attention\.prefill: fa2 cannot read .* {kind.value}; set it to auto"):
        refuse_with_codes(FlashInferOptions(prefill=Prefill.fa2), kind)
    with pytest.raises(ConfigError, match=rf"attention\.decode: cuda_cores .* {kind.value}; set it to auto or triton"):
        refuse_with_codes(FlashInferOptions(decode=Decode.cuda_cores), kind)


@pytest.mark.parametrize("decode", Decode)
@pytest.mark.parametrize("cache", [BF16, FP8], ids=str)
@pytest.mark.parametrize("query", [8, 16, 32])
def test_what_is_warmed_up_is_all_that_serves(hopper: bool, query: int, cache: torch.dtype, decode: Decode) -> None:
    kernels, heads = Kernels(FlashInferOptions(decode=decode), Types(BF16, cache), CUDA), Heads(query, 8, 128)
    served = []
    kernels.kernel = lambda size, kind: served.append(kind)  # type: ignore[method-assign, assignment, func-returns-value]
    for query_lens in ([1], [1] * 40, [1] * 300, [3], [9000], [9000, 1], [20] * 4):
        contexts = [10] * len(query_lens) if max(query_lens) == 1 else query_lens
        pages = [list(range(-(-context // 16))) for context in contexts]
        for requests in divide(make_attention_batch(query_lens, contexts, pages, 16), 16):
            if requests is not None and (kernels.decodes or not requests.decodes):
                kernels.serving(heads, requests)
    assert set(kernels.kinds(heads)) == set(served)
    assert ("packed" in served) == (hopper and cache == BF16)


@pytest.mark.parametrize("query, kv", [(7, 1), (20, 4), (48, 8), (128, 8)])
def test_a_group_that_cuda_cores_do_not_cover_is_refused(query: int, kv: int) -> None:
    heads = Heads(query, kv, 128)
    with pytest.raises(ConfigError, match=f"cuda_cores cannot serve {query // kv} query heads"):
        own_decode(Decode.cuda_cores, heads)
    assert own_decode(Decode.tensor_cores, heads) == "tensor_cores"


@pytest.mark.parametrize("group", [1, 2, 3, 4, 8])
def test_the_wish_is_followed(group: int) -> None:
    heads = Heads(8 * group, 8, 128)
    assert own_decode(Decode.cuda_cores, heads) == "cuda_cores"
    assert own_decode(Decode.tensor_cores, heads) == "tensor_cores"
    assert own_decode(Decode.auto, heads) is None
    assert own_decode(Decode.triton, heads) is None


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
    captured_prompts = 32 * (2048 * 4 + 8 * 128) * row
    assert partial_bytes(Heads(32, 8, 128), 132, 8, 2048) >= captured_prompts
    captured_on_tensor_cores = 32 * (256 * 4 // 16 + 255) * 16 * row
    assert partial_bytes(Heads(32, 8, 128), 132, 256) >= captured_on_tensor_cores


def test_captured_plans_have_room() -> None:
    for requests in (1, 256, 4096):
        blocks = max(32 * 132, 2 * requests)
        assert graph_plan_bytes(requests) >= 13 * blocks + 8 * requests
