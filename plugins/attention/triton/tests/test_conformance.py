"""The triton backend keeps the contract of attention backends on a GPU."""

from __future__ import annotations

import pytest
import torch

from pymllm.interfaces import KVDtype
from pymllm.plugin import AttentionOptions
from pymllm.testing.attention import AttentionBackendConformance, MakeBackend
from pymllm_attention_triton.backend import TritonAttention


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
class TestTritonAttention(AttentionBackendConformance):
    @pytest.fixture
    def make_backend(self) -> MakeBackend:
        return lambda context: TritonAttention(AttentionOptions(), context)

    @pytest.fixture
    def device(self) -> torch.device:
        return torch.device("cuda")

    @pytest.fixture(params=[torch.float32, torch.bfloat16, torch.float16], ids=str)
    def dtype(self, request: pytest.FixtureRequest) -> torch.dtype:
        return request.param


class TestWithACacheOfCodes(TestTritonAttention):
    @pytest.fixture(params=[KVDtype.int8, KVDtype.int4], ids=lambda kind: kind.value)
    def kv_dtype(self, request: pytest.FixtureRequest) -> KVDtype:
        return request.param
