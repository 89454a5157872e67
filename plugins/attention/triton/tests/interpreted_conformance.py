"""The conformance kit through Triton's interpreter; run by test_interpreter.py with TRITON_INTERPRET=1."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from pymllm.interfaces import KVDtype
from pymllm.plugin import AttentionOptions
from pymllm.testing import attention as kit
from pymllm.testing.attention import TOLERANCE, AttentionBackendConformance, MakeBackend, MakeRig, Shape
from pymllm.testing.attention_rig import Rig
from pymllm_attention_triton.backend import TritonAttention

SHAPES = {torch.float32: [Shape(64, 16, 6, 2), Shape(72, 8, 2, 2)], torch.bfloat16: [Shape(32, 4, 7, 1)]}
SMALL = Shape(64, 16, 3, 1)
"""Of the cases that name no shape: programs are run one after the other here."""


class Interpreted(TritonAttention):
    """The backend on CPU tensors, for the interpreter alone."""

    capabilities = replace(TritonAttention.capabilities, devices=frozenset({"cpu"}))


class TestInterpreted(AttentionBackendConformance):
    @pytest.fixture
    def make_backend(self) -> MakeBackend:
        return lambda context: Interpreted(AttentionOptions(), context)

    @pytest.fixture(params=list(SHAPES), ids=str)
    def dtype(self, request: pytest.FixtureRequest) -> torch.dtype:
        return request.param

    @pytest.fixture
    def tolerance(self, dtype: torch.dtype) -> float:
        # The interpreter cuts off bits when it makes a bfloat16, where a GPU rounds: twice the error.
        return TOLERANCE[dtype] * (2 if dtype == torch.bfloat16 else 1)

    @pytest.fixture(autouse=True)
    def _small(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(kit, "USUAL", SMALL)

    @pytest.fixture(params=[0, 1])
    def rig(self, request: pytest.FixtureRequest, make_rig: MakeRig, dtype: torch.dtype) -> Rig:
        if request.param >= len(SHAPES[dtype]):
            pytest.skip("one shape is enough")
        return make_rig(SHAPES[dtype][request.param])


class TestInterpretedCodes(TestInterpreted):
    """A cache of codes, with heads that do not fill their columns; float32 is enough to see by."""

    @pytest.fixture(params=[KVDtype.int8, KVDtype.int4], ids=lambda kind: kind.value)
    def kv_dtype(self, request: pytest.FixtureRequest) -> KVDtype:
        return request.param

    @pytest.fixture
    def dtype(self) -> torch.dtype:
        return torch.float32

    @pytest.fixture
    def rig(self, make_rig: MakeRig) -> Rig:
        return make_rig(Shape(24, 4, 4, 2))
