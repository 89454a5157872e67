"""What the backend says when memory is short, and that it can be used inside and outside inference mode."""

from __future__ import annotations

import pytest
import torch

from pymllm.interfaces import AttentionContext, KVGroup
from pymllm.testing.attention_rig import Rig
from pymllm_attention_torch.backend import TorchAttention

GROUP = KVGroup("full", 2, 3, 64)


def backend() -> TorchAttention:
    return TorchAttention(None, AttentionContext(torch.device("cpu"), torch.float32, 16, {"full": GROUP}))


def test_too_many_pages_are_a_memory_error() -> None:
    with pytest.raises(MemoryError):
        backend().allocate(GROUP, 1 << 40)


def test_page_bytes() -> None:
    assert backend().page_bytes(GROUP) == 2 * 2 * 3 * 64 * 16 * 4


def test_inference_mode_may_change_between_steps() -> None:
    rig = Rig(backend(), 9, 40)
    request = rig.request(103)
    with torch.inference_mode():
        rig.check([(request, 100)], 1e-5)
        rig.check([(request, 1)], 1e-5)
    rig.check([(request, 1)], 1e-5)
    with torch.inference_mode():
        rig.check([(request, 1)], 1e-5)
