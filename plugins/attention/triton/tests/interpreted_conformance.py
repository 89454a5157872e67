"""The conformance kit through Triton's interpreter; run by test_interpreter.py with TRITON_INTERPRET=1."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from pymllm.plugin import AttentionOptions
from pymllm.testing.attention import AttentionBackendConformance, MakeBackend
from pymllm_attention_triton.backend import TritonAttention


class Interpreted(TritonAttention):
    """The backend on CPU tensors, for the interpreter alone."""

    capabilities = replace(TritonAttention.capabilities, devices=frozenset({"cpu"}))


class TestInterpreted(AttentionBackendConformance):
    @pytest.fixture
    def make_backend(self) -> MakeBackend:
        return lambda context: Interpreted(AttentionOptions(), context)

    @pytest.fixture(params=[torch.float32, torch.bfloat16], ids=str)
    def dtype(self, request: pytest.FixtureRequest) -> torch.dtype:
        return request.param
