"""Full-precision linear layers: the quantization kit, casts, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pymllm.errors import PluginError
from pymllm.interfaces import LinearSpec, QuantContext, WeightMap
from pymllm.layers import FullPrecision
from pymllm.testing import QuantMethodConformance


class TestFullPrecision(QuantMethodConformance):
    tolerance = 1e-6

    @pytest.fixture
    def make_method(self):  # type: ignore[no-untyped-def]
        return lambda device, dtype: FullPrecision(None, QuantContext(device, dtype, None))


def spec(**fields: Any) -> LinearSpec:
    defaults: dict[str, Any] = {
        "names": ("a", "b"),
        "in_features": 3,
        "out_features": (2, 1),
        "bias": True,
        "dtype": torch.bfloat16,
        "device": torch.device("cpu"),
    }
    return LinearSpec(**{**defaults, **fields})


def test_each_part_fills_its_own_rows_and_is_cast() -> None:
    weights = WeightMap()
    layer = FullPrecision().linear(spec(), weights)
    values = {
        "a.weight": torch.tensor([[1.0, 2, 3], [4, 5, 6]]),
        "b.weight": torch.tensor([[7.0, 8, 9]], dtype=torch.float16),
        "a.bias": torch.tensor([10.0, 20]),
        "b.bias": torch.tensor([30.0]),
    }
    for name, tensor in values.items():
        binding = weights.get(name)
        assert binding is not None
        binding.load(tensor)
    y = layer(torch.tensor([[1, 0, 1]], dtype=torch.bfloat16))
    assert y.dtype == torch.bfloat16
    assert y.tolist() == [[14, 30, 46]]


def test_a_layer_cut_over_gpus_is_refused() -> None:
    with pytest.raises(PluginError, match="tensor parallelism"):
        FullPrecision().linear(spec(world=2), WeightMap())


def test_a_quantized_checkpoint_is_refused() -> None:
    context = QuantContext(torch.device("cpu"), torch.bfloat16, {"quant_method": "awq"})
    with pytest.raises(PluginError, match=r"quantized \(awq\): set quant.plugin"):
        FullPrecision(None, context)
