"""On a GPU, neither planning nor running a step waits for the device."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from pymllm.interfaces import AttentionContext, KVGroup
from pymllm.testing.attention_rig import Rig
from pymllm_attention_torch.backend import TorchAttention

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


@pytest.fixture
def waiting_is_an_error() -> Iterator[None]:
    torch.cuda.set_sync_debug_mode("error")
    yield
    torch.cuda.set_sync_debug_mode("default")


@pytest.fixture
def rig() -> Rig:
    group = KVGroup("full", 2, 2, 64)
    context = AttentionContext(torch.device("cuda"), torch.bfloat16, 16, {"full": group})
    return Rig(TorchAttention(None, context), 4, 64)


@pytest.mark.parametrize("query_lens", [[1, 1, 1], [1, 40, 1]], ids=["decodes", "mixed"])
def test_a_step(rig: Rig, query_lens: list[int], request: pytest.FixtureRequest) -> None:
    batch = rig.batch(query_lens, [30, 90, 31], [rig.take(90) for _ in query_lens])
    layer, tokens = rig.layers[0], sum(query_lens)
    q = rig.put(rig.random(tokens, layer.heads, layer.head_dim))
    out = torch.empty_like(q)
    k = rig.put(rig.random(tokens, layer.kv_heads, layer.head_dim))
    request.getfixturevalue("waiting_is_an_error")
    rig.backend.plan(batch)
    rig.backend.write(layer, k, k)
    rig.backend.attend(layer, q, out)
