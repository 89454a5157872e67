"""The torch backend keeps the contract of attention backends, on the CPU and on a GPU."""

from __future__ import annotations

import pytest
import torch

from pymllm.interfaces import KVDtype
from pymllm.plugin import AttentionOptions
from pymllm.testing.attention import SHAPES, AttentionBackendConformance, MakeBackend, MakeRig
from pymllm.testing.attention_rig import Rig
from pymllm_attention_torch.backend import TorchAttention


class TestTorchAttention(AttentionBackendConformance):
    @pytest.fixture
    def make_backend(self) -> MakeBackend:
        return lambda context: TorchAttention(AttentionOptions(), context)

    @pytest.fixture(params=[torch.float32, torch.bfloat16, torch.float16], ids=str)
    def dtype(self, request: pytest.FixtureRequest) -> torch.dtype:
        return request.param


class TestWithAnFp8Cache(TestTorchAttention):
    @pytest.fixture
    def kv_dtype(self) -> KVDtype:
        return KVDtype.fp8

    @pytest.fixture(params=SHAPES[::3], ids=str)
    def rig(self, request: pytest.FixtureRequest, make_rig: MakeRig) -> Rig:
        return make_rig(request.param)


class TestWithACacheOfCodes(TestWithAnFp8Cache):
    @pytest.fixture(params=[KVDtype.int8, KVDtype.int4], ids=lambda kind: kind.value)
    def kv_dtype(self, request: pytest.FixtureRequest) -> KVDtype:
        return request.param

    @pytest.fixture(params=[torch.float32, torch.bfloat16], ids=str)
    def dtype(self, request: pytest.FixtureRequest) -> torch.dtype:
        return request.param


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
class TestTorchAttentionOnCuda(TestTorchAttention):
    @pytest.fixture
    def device(self) -> torch.device:
        return torch.device("cuda")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
class TestWithAnFp8CacheOnCuda(TestWithAnFp8Cache):
    @pytest.fixture
    def device(self) -> torch.device:
        return torch.device("cuda")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
class TestWithACacheOfCodesOnCuda(TestWithACacheOfCodes):
    @pytest.fixture
    def device(self) -> torch.device:
        return torch.device("cuda")
