"""On a GPU: nothing waits for the device, a captured graph serves any later lengths, results repeat."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pytest
import torch

from pymllm.interfaces import AttentionBatch, AttentionContext, KVDtype, KVGroup
from pymllm.testing.attention_reference import attention
from pymllm.testing.attention_rig import Request, Rig, array, assert_close
from pymllm_attention_triton.backend import TritonAttention

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

PAGE = 16
COLUMNS = 64


def make_rig(pages: int = 600, heads: int = 8, kv_dtype: KVDtype = KVDtype.auto) -> Rig:
    group = KVGroup("full", 2, 4, 128)
    context = AttentionContext(torch.device("cuda"), torch.bfloat16, PAGE, {"full": group}, kv_dtype)
    return Rig(TritonAttention(None, context), heads, pages)


@pytest.fixture
def waiting_is_an_error() -> Iterator[None]:
    torch.cuda.set_sync_debug_mode("error")
    yield
    torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("query_lens", [[1, 1, 1], [1, 40, 1]], ids=["decodes", "mixed"])
def test_a_step_does_not_wait(query_lens: list[int], request: pytest.FixtureRequest) -> None:
    rig = make_rig(64)
    batch = rig.batch(query_lens, [30, 90, 31], [rig.take(90) for _ in query_lens])
    layer, tokens = rig.layers[0], sum(query_lens)
    q = rig.put(rig.random(tokens, layer.heads, layer.head_dim))
    out = torch.empty_like(q)
    k = rig.put(rig.random(tokens, layer.kv_heads, layer.head_dim))
    rig.backend.plan(batch)
    rig.backend.attend(layer, q, out)  # Compiles.
    request.getfixturevalue("waiting_is_an_error")
    rig.backend.plan(batch)
    rig.backend.write(layer, k, k)
    rig.backend.attend(layer, q, out)


class Replayed:
    """A graph of one decode step of ``rows`` requests, captured with every row padding."""

    def __init__(self, rig: Rig, rows: int) -> None:
        self.rig, self.rows, device = rig, rows, rig.device
        self.batch = AttentionBatch(
            [1] * rows,
            [1] * rows,
            torch.arange(rows + 1, dtype=torch.int32, device=device),
            torch.ones(rows, dtype=torch.int32, device=device),
            torch.zeros(rows, COLUMNS, dtype=torch.int32, device=device),
            torch.zeros(rows, dtype=torch.int64, device=device),
        )
        layer = rig.layers[0]
        self.q = torch.zeros(rows, layer.heads, layer.head_dim, dtype=rig.dtype, device=device)
        rig.backend.plan(self.batch)
        self.out = rig.attend(layer, self.q)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            rig.backend.attend(layer, self.q, self.out)

    def step(self, requests: Sequence[Request]) -> list[np.ndarray]:
        """The last computed token of each request again, the other rows padding."""
        lengths = torch.ones(self.rows, dtype=torch.int32)
        table = torch.zeros(self.rows, COLUMNS, dtype=torch.int32)
        for row, request in enumerate(requests):
            lengths[row] = request.done
            table[row, : len(request.pages)] = torch.tensor(request.pages)
            self.q[row] = self.rig.put(request.q[request.done - 1])
        self.batch.context_lens_d.copy_(lengths)
        self.batch.page_table.copy_(table)
        self.graph.replay()
        return list(array(self.out[: len(requests)]))


@pytest.mark.parametrize("kv_dtype", [KVDtype.auto, KVDtype.int8, KVDtype.int4], ids=lambda kind: kind.value)
@pytest.mark.parametrize("rows", [1, 8, 160])
def test_a_graph_serves_any_later_lengths(rows: int, kv_dtype: KVDtype) -> None:
    rig = make_rig(kv_dtype=kv_dtype)
    requests = []
    for length in (1, 17, 1000, 64, 300, 641):
        requests.append(rig.request(length))
        rig.step([(requests[-1], length)])
    replayed = Replayed(rig, rows)
    for chosen in (requests, requests[::-1], requests[2:3], requests):
        for request, found in zip(chosen, replayed.step(chosen[:rows])):
            q, k, v = array(request.q[-1:]), rig.kept(array(request.k)), rig.kept(array(request.v))
            assert_close(found, attention(q, k, v, rig.layers[0].scale)[0], 8e-3)


@pytest.mark.parametrize("kv_dtype", [KVDtype.auto, KVDtype.int8, KVDtype.int4], ids=lambda kind: kind.value)
def test_results_repeat_bit_for_bit(kv_dtype: KVDtype) -> None:
    rig = make_rig(kv_dtype=kv_dtype)
    request, other = rig.request(1000), rig.request(700)
    rig.step([(request, 1000)])
    rig.step([(other, 700)])
    batch = rig.batch([1, 300, 1], [1000, 700, 640], [request.pages, other.pages, request.pages])
    q = rig.put(rig.random(302, 8, 128))
    rig.backend.plan(batch)
    first = rig.attend(rig.layers[0], q)
    assert first.isfinite().all()
    for _ in range(20):
        assert torch.equal(rig.attend(rig.layers[0], q), first)


def test_many_requests_of_very_different_lengths() -> None:
    """More requests than a program looks at at once, and one that is cut into many parts."""
    rig = make_rig(1500, heads=4)
    lengths = [1 + 7 * i % 90 for i in range(299)] + [900]
    requests = [rig.request(length) for length in lengths]
    for start in range(0, 300, 50):
        rig.step([(request, len(request.q)) for request in requests[start : start + 50]])
    for request in requests:
        request.done -= 1
    rig.check([(request, 1) for request in requests], 8e-3)
