"""The light module describes the plugin without importing anything heavy; without FlashInfer it says so."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

import pymllm_attention_flashinfer.library as library
from pymllm.errors import PluginError
from pymllm.interfaces import AttentionContext
from pymllm_attention_flashinfer.backend import FlashInferAttention
from pymllm_attention_flashinfer.plugin import FlashInferOptions, pymllm_attention
from pymllm_attention_flashinfer.probe import probe


def test_describing_it_imports_neither_torch_nor_flashinfer() -> None:
    code = (
        f"import sys; sys.path[:0] = {sys.path!r}; "
        "import pymllm_attention_flashinfer.plugin as p; s = p.pymllm_attention(); "
        "print(s.priority, 'torch' in sys.modules, 'flashinfer' in sys.modules)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["20", "False", "False"]


def test_its_parts_can_be_loaded() -> None:
    spec = pymllm_attention()
    assert spec.load_factory() is FlashInferAttention
    assert spec.load_probe() is probe


@pytest.fixture
def without_flashinfer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "find_spec", lambda name: None)


@pytest.mark.usefixtures("without_flashinfer")
def test_without_flashinfer_the_probe_says_how_to_get_it() -> None:
    assert probe(torch.device("cuda")) == "FlashInfer is not installed; run: pip install 'flashinfer-python>=0.6.13'"


@pytest.mark.usefixtures("without_flashinfer")
def test_without_flashinfer_the_backend_is_refused_in_one_line() -> None:
    context = AttentionContext(torch.device("cuda"), torch.bfloat16, 16, {})
    with pytest.raises(PluginError, match="'flashinfer' cannot run: FlashInfer is not installed; run: "):
        FlashInferAttention(FlashInferOptions(), context)


def test_a_cpu_is_no_place_for_it() -> None:
    assert probe(torch.device("cpu")) == "runs on CUDA, not on cpu"


def test_a_kernel_that_cannot_be_built_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def build() -> object:
        raise RuntimeError("Ninja build failed.\nnvcc: command not found")

    monkeypatch.setattr(library, "require", lambda: None)
    with pytest.raises(PluginError) as caught:
        library._load("decode kernel", build)
    assert str(caught.value).startswith("FlashInfer cannot build its decode kernel: nvcc: command not found; ")
    assert "\n" not in str(caught.value)
