"""The method passes pymllm's kit, in each way that it gets its weights."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from pymllm.interfaces import QuantContext
from pymllm.testing import QuantMethodConformance
from pymllm_quant_w4a16.method import W4A16Method
from pymllm_quant_w4a16.plugin import W4A16Options

# Uniform rounding, error step / sqrt(12). A group of 32 normal numbers spans 4.1 sigma, in 15 steps: 0.079 sigma; of
# 128, 5.2 sigma: 0.1 sigma. Symmetric: 2 x 2.8 sigma in 15 steps for 128.
SMALL_GROUPS, LARGE_GROUPS, SYMMETRIC = 0.09, 0.11, 0.12


class Kit(QuantMethodConformance):
    options = W4A16Options(online=True)
    checkpoint: dict | None = None

    @pytest.fixture
    def make_method(self):
        return lambda device, dtype: W4A16Method(self.options, QuantContext(device, dtype, self.checkpoint))

    @pytest.fixture
    def refused(self):
        return {"world": 2, "parallel": "column"}


class TestOnline(Kit):
    tolerance = LARGE_GROUPS


class TestOnlineInSmallGroups(Kit):
    tolerance = SMALL_GROUPS
    options = W4A16Options(online=True, group_size=32)


class TestOnlineSymmetric(Kit):
    tolerance = SYMMETRIC
    options = W4A16Options(online=True, symmetric=True)


class TestCompressedTensors(Kit):
    """encode: compressed-tensors' format, written here."""

    tolerance = SYMMETRIC
    options = W4A16Options()
    checkpoint = {  # noqa: RUF012
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 64},
            }
        },
    }

    def encode(self, name: str, weight: Tensor, bias: Tensor | None) -> dict[str, Tensor]:
        groups = weight.double().numpy().reshape(len(weight), -1, 64)
        scales = np.maximum(np.abs(groups).max(2, keepdims=True) / 7.5, 1e-6).astype(np.float32)
        codes = (np.clip(np.rint(groups / scales), -8, 7) + 8).astype(np.uint32).reshape(len(weight), -1, 8)
        words = (codes << (4 * np.arange(8, dtype=np.uint32))).sum(2, dtype=np.uint32).view(np.int32)
        tensors = {
            f"{name}.weight_packed": torch.from_numpy(words.copy()),
            f"{name}.weight_scale": torch.from_numpy(scales[:, :, 0]),
            f"{name}.weight_shape": torch.tensor(weight.shape),
        }
        return tensors if bias is None else {**tensors, f"{name}.bias": bias}


@pytest.mark.gpu
class TestOnAGPU(Kit):
    device = "cuda"
    dtypes = (torch.bfloat16, torch.float16, torch.float32)
    tolerance = LARGE_GROUPS


@pytest.mark.gpu
class TestSymmetricOnAGPU(TestOnlineSymmetric):
    device = "cuda"
