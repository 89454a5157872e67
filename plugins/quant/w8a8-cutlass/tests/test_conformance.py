"""The method passes pymllm's kit, with a compressed checkpoint's tensors and online."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from pymllm.interfaces import QuantContext
from pymllm.testing import QuantMethodConformance
from pymllm_quant_w8a8_cutlass.method import W8A8Method
from pymllm_quant_w8a8_cutlass.plugin import W8A8Options

CONFIG = {
    "quant_method": "compressed-tensors",
    "format": "int-quantized",
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": True, "dynamic": False},
            "input_activations": {
                "num_bits": 8,
                "type": "int",
                "strategy": "token",
                "symmetric": True,
                "dynamic": True,
            },
        }
    },
    "ignore": ["lm_head"],
}
# Rounding to a step of max|w|/127 or max|x|/127: each error's deviation is step / sqrt(12), which for normal rows of
# 256 (max about 2.8 sigma) is 0.0064 sigma; weights' and activations' add up as sqrt(2).
TOLERANCE = 0.012


class TestOnline(QuantMethodConformance):
    tolerance = TOLERANCE

    @pytest.fixture
    def make_method(self):
        return lambda device, dtype: W8A8Method(W8A8Options(online=True), QuantContext(device, dtype, None))

    @pytest.fixture(params=["terms", "world"])
    def refused(self, request: pytest.FixtureRequest):
        return {"terms": {"in_features": 40}, "world": {"world": 2}}[request.param]


class TestCompressed(TestOnline):
    @pytest.fixture
    def make_method(self):
        return lambda device, dtype: W8A8Method(W8A8Options(), QuantContext(device, dtype, CONFIG))

    def encode(self, name: str, weight: Tensor, bias: Tensor | None) -> dict[str, Tensor]:
        wide = weight.double().numpy()
        scale = np.maximum(np.abs(wide).max(axis=1, keepdims=True) / 127, 1e-30).astype(np.float32)
        tensors = {
            f"{name}.weight": torch.from_numpy(np.rint(wide / scale).astype(np.int8)),
            f"{name}.weight_scale": torch.from_numpy(scale),
        }
        return tensors if bias is None else {**tensors, f"{name}.bias": bias}


@pytest.mark.gpu
class TestOnlineOnAGPU(TestOnline):
    device = "cuda"


@pytest.mark.gpu
class TestCompressedOnAGPU(TestCompressed):
    device = "cuda"
