"""The probe runs a kernel, and says in one line why a device cannot."""

from __future__ import annotations

import pytest
import torch

import pymllm_attention_torch.probe as module
from pymllm_attention_torch.backend import probe


def test_the_cpu_passes() -> None:
    assert probe(torch.device("cpu")) is None


def test_another_kind_of_device_is_named() -> None:
    assert probe(torch.device("meta")) == "runs on CPU and CUDA, not on meta"


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_a_missing_gpu_is_one_line() -> None:
    reason = probe(torch.device("cuda"))
    assert reason is not None
    assert reason.startswith("does not run on cuda: ")
    assert "\n" not in reason


def test_wrong_results_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        module, "dense_attention", lambda *_: lambda q, k, v, bias, scale: torch.full_like(q, float("nan"))
    )
    assert probe(torch.device("cpu")) == "computes wrong results on cpu: off by nan"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_passes() -> None:
    assert probe(torch.device("cuda")) is None
