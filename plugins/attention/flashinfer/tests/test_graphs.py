"""Decodes in a CUDA graph: replays follow new lengths and pages, though nothing is captured again."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from itertools import pairwise

import pytest
import torch

from pymllm.interfaces import AttentionContext, GraphKey, KVDtype, KVGroup
from pymllm.testing.attention_rig import Request, Rig, array, assert_close
from pymllm_attention_flashinfer.backend import FlashInferAttention
from pymllm_attention_flashinfer.plugin import Decode, FlashInferOptions, Prefill

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.skipif(find_spec("flashinfer") is None, reason="needs flashinfer-python"),
]

PAGE, WIDTH, CUDA = 16, 64, torch.device("cuda")


@pytest.fixture(params=[KVDtype.auto, KVDtype.fp8], ids=lambda kind: kind.value)
def kv_dtype(request: pytest.FixtureRequest) -> KVDtype:
    kind: KVDtype = request.param
    return kind


@pytest.fixture(params=[Decode.triton, Decode.cuda_cores, Decode.tensor_cores], ids=lambda decode: decode.value)
def rig(request: pytest.FixtureRequest, kv_dtype: KVDtype) -> Rig:
    group = KVGroup("full", 2, 4, 128)
    context = AttentionContext(CUDA, torch.bfloat16, PAGE, {"full": group}, kv_dtype)
    options = FlashInferOptions(prefill=Prefill.fa2, decode=request.param)
    return Rig(FlashInferAttention(options, context), heads=8, pages=400)


class Captured:
    """A graph of one attention layer over ``size`` decodes. The graph itself copies what a step's tensors hold to
    where the kernels read it, as a runner's graph does: ``plan`` sees the contents of the step before."""

    def __init__(self, rig: Rig, size: int) -> None:
        self.rig, self.size = rig, size
        sources = rig.batch([1] * size, [1] * size, [[0]] * size)
        wide = torch.zeros(size, WIDTH, dtype=torch.int32, device=CUDA)
        self.sources = replace(sources, page_table=wide)
        self.batch = replace(
            sources,
            page_table=torch.zeros_like(wide),
            context_lens_d=sources.context_lens_d.clone(),
            slots=sources.slots.clone(),
            graph_key=GraphKey(size, size),
        )
        heads, kv_heads, head = rig.layers[0].heads, rig.group.kv_heads, rig.group.head_dim
        self.q = torch.zeros(size, heads, head, dtype=rig.dtype, device=CUDA)
        self.kv = torch.zeros(2, size, kv_heads, head, dtype=rig.dtype, device=CUDA)
        rig.backend.plan(self.batch)
        self.run()
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.out = self.run()

    def run(self) -> torch.Tensor:
        for name in ("page_table", "context_lens_d", "slots"):
            getattr(self.batch, name).copy_(getattr(self.sources, name))
        layer = self.rig.layers[1]
        self.rig.backend.write(layer, self.kv[0], self.kv[1])
        out = torch.empty_like(self.q)
        self.rig.backend.attend(layer, self.q, out)
        return out

    def replay(self, requests: list[Request]) -> None:
        """Decode the next token of each request, with padding, and compare."""
        rig, padding = self.rig, self.size - len(requests)
        lens = [request.done + 1 for request in requests] + [1] * padding
        step = rig.batch([1] * self.size, lens, [request.pages for request in requests] + [[0]] * padding)
        self.sources.page_table.fill_(7)  # what an earlier, longer request left behind
        self.sources.page_table[:, : step.page_table.shape[1]] = step.page_table
        self.sources.context_lens_d.copy_(step.context_lens_d)
        self.sources.slots.copy_(step.slots)
        for target, name in ((self.q, "q"), (self.kv[0], "k"), (self.kv[1], "v")):
            rows = torch.stack([getattr(request, name)[request.done] for request in requests])
            target[: len(requests)].copy_(rows)
        self.batch.context_lens = lens
        rig.backend.plan(self.batch)
        self.graph.replay()
        found = array(self.out)
        for row, request in enumerate(requests):
            request.done += 1
            assert_close(found[row : row + 1], rig.expected(request, 1), 8e-3)


def prefilled(rig: Rig, lengths: list[int]) -> list[Request]:
    requests = [rig.request(length + 4) for length in lengths]
    for request, length in zip(requests, lengths):
        rig.step([(request, length)], layer=1)
    return requests


def test_replays_follow_the_batch(rig: Rig) -> None:
    small, large = Captured(rig, 2), Captured(rig, 8)
    first = prefilled(rig, [900, 3, 15, 16, 470])
    large.replay(first)
    small.replay(first[:2])
    large.replay(first)
    second = prefilled(rig, [1, 31, 200, 33, 64, 700, 5, 90])
    large.replay(second)
    large.replay(first[2:])
    small.replay(second[1:2])


def test_eager_steps_in_between_change_nothing(rig: Rig) -> None:
    graph = Captured(rig, 4)
    requests = prefilled(rig, [40, 333])
    graph.replay(requests)
    other = prefilled(rig, [77, 500, 12])
    rig.check([(request, 1) for request in other], 8e-3, layer=1)
    graph.replay(requests)


@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty")
def test_capture_before_a_first_run_is_refused() -> None:
    group = KVGroup("full", 1, 4, 128)
    context = AttentionContext(CUDA, torch.bfloat16, PAGE, {"full": group})
    fresh = Rig(FlashInferAttention(FlashInferOptions(decode=Decode.tensor_cores), context), heads=8, pages=20)
    fresh.backend.plan(replace(fresh.batch([1], [5], [fresh.take(5)]), graph_key=GraphKey(1, 1)))
    q = torch.zeros(1, 8, 128, dtype=torch.bfloat16, device=CUDA)
    torch.cuda.synchronize()
    with pytest.raises(RuntimeError, match="before it was run once"), torch.cuda.graph(torch.cuda.CUDAGraph()):
        fresh.backend.attend(fresh.layers[0], q, torch.empty_like(q))


def test_steps_do_not_wait_for_the_device(rig: Rig) -> None:
    requests = prefilled(rig, [40, 333, 80])
    batch = rig.batch([1, 1, 3], [41, 334, 83], [request.pages for request in requests])
    q = torch.randn(5, 8, 128, device=CUDA).to(rig.dtype)
    out = torch.empty_like(q)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(3):
            rig.backend.plan(batch)
            rig.backend.attend(rig.layers[1], q, out)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("size", [72, 80])
def test_packed_heads_of_other_sizes_are_padded(rig: Rig, size: int) -> None:
    starts = [0, 50, 51, 200]
    q, k, v = (torch.randn(200, heads, size, device=CUDA).to(rig.dtype) for heads in (4, 2, 2))
    found = torch.empty_like(q)
    rig.backend.varlen(q, k, v, found, starts, 0.2)
    for start, end in pairwise(starts):
        rows = slice(start, end)
        wide = [x[rows].double().transpose(0, 1) for x in (q, k.repeat_interleave(2, 1), v.repeat_interleave(2, 1))]
        expected = (0.2 * wide[0] @ wide[1].transpose(1, 2)).softmax(-1) @ wide[2]
        assert_close(array(found[rows]), array(expected.transpose(0, 1)), 8e-3)


def test_packed_heads_that_are_too_large_are_refused(rig: Rig) -> None:
    q = torch.zeros(4, 2, 264, device=CUDA, dtype=rig.dtype)
    with pytest.raises(ValueError, match="head sizes up to 256, not 264"):
        rig.backend.varlen(q, q, q, q.clone(), [0, 4], 1.0)
