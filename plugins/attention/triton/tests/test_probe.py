"""The probe runs a kernel, and says in one line why a device cannot."""

from __future__ import annotations

import pytest
import torch

import pymllm_attention_triton.probe as module
from pymllm_attention_triton.probe import probe


def test_another_kind_of_device_is_named() -> None:
    assert probe(torch.device("cpu")) == "runs on CUDA, not on cpu"


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_a_missing_gpu_is_one_line() -> None:
    reason = probe(torch.device("cuda"))
    assert reason is not None
    assert reason.startswith("does not run on cuda: ")
    assert "\n" not in reason


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_passes() -> None:
    assert probe(torch.device("cuda")) is None
    assert module.probe_error(torch.device("cuda"), torch.bfloat16) < 2e-2
