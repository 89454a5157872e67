"""A checkpoint as compressed-tensors writes it, and Triton's interpreter."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

from pymllm.testing import make_tiny_checkpoint

KERNELS = "pymllm_quant_w8a8_cutlass.kernels."
SHARED = "pymllm.layers.kernels.dependent"


@pytest.fixture
def compressed(tmp_path: Path) -> Callable[..., Path]:
    """``compressed(**config)`` writes a tiny Llama in the format int-quantized; ``ignore`` as in the format."""
    pytest.importorskip("compressed_tensors")

    def write(ignore: tuple[str, ...] = ("lm_head",), **config: Any) -> Path:
        from compressed_tensors.compressors import ModelCompressor
        from compressed_tensors.quantization import (
            QuantizationArgs,
            QuantizationConfig,
            QuantizationScheme,
            apply_quantization_config,
        )
        from transformers import AutoModelForCausalLM

        source = make_tiny_checkpoint(tmp_path / "full", "llama", **config)
        model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
        scheme = QuantizationScheme(
            targets=["Linear"],
            weights=QuantizationArgs(num_bits=8, strategy="channel", symmetric=True),
            input_activations=QuantizationArgs(num_bits=8, strategy="token", dynamic=True, symmetric=True),
        )
        apply_quantization_config(
            model, QuantizationConfig(config_groups={"all": scheme}, ignore=list(ignore), format="int-quantized")
        )
        for module in model.modules():
            if isinstance(module, nn.Linear) and hasattr(module, "weight_scale"):
                # As its observers do: 255 levels between -max and max.
                module.weight_scale.data = module.weight.detach().abs().amax(1, keepdim=True) / 127.5
        compressor = ModelCompressor.from_pretrained_model(model, quantization_format="int-quantized")
        compressor.compress_model(model)
        folder = tmp_path / "compressed"
        model.save_pretrained(folder)
        compressor.update_config(str(folder))
        for name in ("tokenizer.json", "tokenizer_config.json"):
            (folder / name).write_bytes((source / name).read_bytes())
        return folder

    return write


@pytest.fixture(scope="session")
def interpreted() -> Callable[[str], ModuleType]:
    """A module of kernels that run on CPU tensors. Triton decides that where a kernel, its own library's too, is
    defined: so both are imported a second time, apart from the copies that compile."""
    pytest.importorskip("triton")
    ours = {name: module for name, module in sys.modules.items() if _defines_kernels(name)}
    for name in ours:
        del sys.modules[name]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_INTERPRET", "1")
        modules = {
            name: importlib.import_module(KERNELS + name) for name in ("rows_triton", "gemv_triton", "dot_triton")
        }
    for name in [name for name in sys.modules if _defines_kernels(name)]:
        del sys.modules[name]
    sys.modules.update(ours)
    return modules.__getitem__


def _defines_kernels(name: str) -> bool:
    """Whether a module is one of ours with kernels, or of Triton's (but for its compiled part, which is one)."""
    if name == SHARED or (name.startswith(KERNELS) and name.endswith("_triton")):
        return True
    return name.split(".")[0] == "triton" and not name.startswith("triton._C")
