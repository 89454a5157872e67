"""After ``warmup`` no step loads or builds a kernel."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
import torch

import pymllm_attention_flashinfer.library as library
from pymllm.interfaces import AttentionContext, KVDtype, KVGroup
from pymllm.testing.attention_rig import Rig
from pymllm_attention_flashinfer.backend import FlashInferAttention
from pymllm_attention_flashinfer.plugin import FlashInferOptions

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.skipif(find_spec("flashinfer") is None, reason="needs flashinfer-python"),
]


@pytest.mark.parametrize("kv_dtype", [KVDtype.auto, KVDtype.fp8], ids=lambda kind: kind.value)
def test_nothing_is_loaded_after_it(kv_dtype: KVDtype, monkeypatch: pytest.MonkeyPatch) -> None:
    group = KVGroup("full", 2, 4, 128)
    context = AttentionContext(torch.device("cuda"), torch.bfloat16, 16, {"full": group}, kv_dtype)
    rig = Rig(FlashInferAttention(FlashInferOptions(), context), heads=8, pages=1200)
    rig.step([(rig.request(1), 1)])
    lines = list(rig.backend.warmup())
    hopper = torch.cuda.get_device_capability() == (9, 0)
    assert sum("FlashInfer kernel loaded" in line for line in lines) == (
        2 if hopper and kv_dtype is KVDtype.auto else 1
    )

    def load(what: str, build: object) -> None:
        raise AssertionError(f"{what} was loaded")

    monkeypatch.setattr(library, "_load", load)
    requests = [rig.request(3) for _ in range(50)]
    for request in requests:
        rig.step([(request, 1)])
    rig.check([(request, 1) for request in requests], 8e-3)
    rig.check([(requests[0], 1), (rig.request(40), 40)], 8e-3)
    assert len(rig.step([(rig.request(9000), 9000)])[0]) == 9000
