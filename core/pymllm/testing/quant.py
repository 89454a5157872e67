"""The conformance kit of quantization methods. Subclass it, build your method, and run pytest::

    class TestMyMethod(QuantMethodConformance):
        tolerance = 0.01

        @pytest.fixture
        def make_method(self):
            return lambda device, dtype: MyMethod(MyOptions(), QuantContext(device, dtype, checkpoint=None))

A method that reads a quantized checkpoint also overrides ``encode``. It needs pytest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from pymllm.interfaces import Linear, LinearSpec, QuantMethod, Unsupported, WeightMap

MakeMethod = Callable[[torch.device, torch.dtype], QuantMethod]

ROUNDING = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
"""Of the outputs' root mean square: how far two ways to compute the same product may lie apart, per dtype."""


def rms(x: Tensor) -> float:
    """Root mean square."""
    return float(x.double().square().mean().sqrt())


class QuantMethodConformance:
    """What every quantization method must do. See :mod:`pymllm.interfaces.quant` for the rules it checks.

    tolerance: root mean square of the error against the exact product, as a share of the outputs'.
    dtypes: activations that the method serves. device: where. in_features, partitions: a shape that it serves.
    """

    tolerance: float
    dtypes: Sequence[torch.dtype] = (torch.float32, torch.bfloat16, torch.float16)
    device: str = "cpu"
    in_features: int = 256
    partitions: tuple[int, ...] = (128, 64, 64)

    @pytest.fixture
    def make_method(self) -> MakeMethod:
        """``make_method(device, dtype)`` builds the method under test. Override this fixture."""
        raise NotImplementedError("override the fixture make_method in your subclass of QuantMethodConformance")

    @pytest.fixture
    def refused(self) -> Mapping[str, Any] | None:
        """Fields of a LinearSpec that the method must refuse; None if it serves every layer. Override this fixture."""
        return None

    def encode(self, name: str, weight: Tensor, bias: Tensor | None) -> dict[str, Tensor]:
        """The checkpoint's tensors of a layer with that weight [out, in] and bias [out], both float32."""
        tensors = {f"{name}.weight": weight}
        return tensors if bias is None else {**tensors, f"{name}.bias": bias}

    @pytest.fixture(params=[torch.float32, torch.bfloat16, torch.float16], ids=str)
    def dtype(self, request: pytest.FixtureRequest) -> torch.dtype:
        """Each of the method's activation dtypes in turn."""
        dtype: torch.dtype = request.param
        if dtype not in self.dtypes:
            pytest.skip(f"the method does not serve {dtype}")
        return dtype

    # Helpers

    def spec(self, dtype: torch.dtype, **fields: Any) -> LinearSpec:
        """The fused layer of the kit, with fields replaced."""
        names = tuple(f"model.layer.part{index}" for index in range(len(self.partitions)))
        defaults = {
            "names": names,
            "in_features": self.in_features,
            "out_features": self.partitions,
            "bias": False,
            "dtype": dtype,
            "device": torch.device(self.device),
        }
        return LinearSpec(**{**defaults, **fields})

    def build(
        self, method: QuantMethod, spec: LinearSpec, parts: Sequence[Tensor], biases: Sequence[Tensor | None]
    ) -> Linear:
        """Make the layer and load each partition's tensors into it."""
        weights = WeightMap()
        layer = method.linear(spec, weights)
        for name, weight, bias in zip(spec.names, parts, biases):
            for key, tensor in self.encode(name, weight, bias).items():
                binding = weights.get(key)
                assert binding is not None, f"{key} of the checkpoint is bound to nothing"
                assert binding.shape == tuple(tensor.shape), f"{key} is bound with another shape"
                binding.load(tensor)
        layer.finalize()
        return layer

    def fused(self, method: QuantMethod, dtype: torch.dtype, *, bias: bool = False) -> Linear:
        """The kit's layer with its weights loaded."""
        biases = self.biases() if bias else [None] * len(self.partitions)
        return self.build(method, self.spec(dtype, bias=bias), self.weights(), biases)

    def weights(self) -> list[Tensor]:
        """One float32 weight per partition, [out, in], rows of different sizes."""
        generator = torch.Generator().manual_seed(3)
        shapes = [(out, self.in_features) for out in self.partitions]
        return [
            torch.randn(shape, generator=generator) * torch.rand(shape[0], 1, generator=generator) for shape in shapes
        ]

    def biases(self) -> list[Tensor | None]:
        """One float32 bias per partition."""
        generator = torch.Generator().manual_seed(4)
        return [torch.randn(out, generator=generator) for out in self.partitions]

    def inputs(self, rows: int, dtype: torch.dtype) -> Tensor:
        """x: [rows, in_features]."""
        x = torch.randn(rows, self.in_features, generator=torch.Generator().manual_seed(5))
        return x.to(device=self.device, dtype=dtype)

    # Shapes and names

    @pytest.mark.parametrize("rows", [1, 2, 17])
    def test_outputs_have_the_right_shape_and_dtype(
        self, make_method: MakeMethod, dtype: torch.dtype, rows: int
    ) -> None:
        y = self.fused(make_method(torch.device(self.device), dtype), dtype)(self.inputs(rows, dtype))
        assert (tuple(y.shape), y.dtype) == ((rows, sum(self.partitions)), dtype)

    @pytest.mark.parametrize("bias", [False, True])
    def test_exactly_the_checkpoints_names_are_bound(self, make_method: MakeMethod, bias: bool) -> None:
        dtype, weights = self.dtypes[0], WeightMap()
        spec = self.spec(dtype, bias=bias)
        make_method(torch.device(self.device), dtype).linear(spec, weights)
        biases = self.biases() if bias else [None] * len(self.partitions)
        parts = zip(spec.names, self.weights(), biases)
        assert set(weights) == {key for name, weight, b in parts for key in self.encode(name, weight, b)}

    # Numbers

    def test_the_error_is_within_the_tolerance(self, make_method: MakeMethod, dtype: torch.dtype) -> None:
        x = self.inputs(33, dtype)
        y = self.fused(make_method(torch.device(self.device), dtype), dtype)(x)
        exact = x.cpu().double() @ torch.cat(self.weights()).double().T
        assert rms(y.cpu() - exact) <= (self.tolerance + ROUNDING[dtype]) * rms(exact)

    def test_a_fused_layer_equals_separate_ones(self, make_method: MakeMethod, dtype: torch.dtype) -> None:
        x, method = self.inputs(5, dtype), make_method(torch.device(self.device), dtype)
        together = self.fused(method, dtype, bias=True)(x)
        alone = []
        for index, (weight, bias) in enumerate(zip(self.weights(), self.biases())):
            spec = self.spec(dtype, names=(f"alone.part{index}",), out_features=(len(weight),), bias=True)
            alone.append(self.build(method, spec, [weight], [bias])(x))
        expected = torch.cat(alone, dim=-1)
        assert rms(together - expected) <= ROUNDING[dtype] * rms(expected)

    def test_the_bias_is_added(self, make_method: MakeMethod, dtype: torch.dtype) -> None:
        x, method = self.inputs(5, dtype), make_method(torch.device(self.device), dtype)
        plain = self.fused(method, dtype)(x)
        biased = self.fused(method, dtype, bias=True)(x)
        bias = torch.cat([b for b in self.biases() if b is not None]).to(plain.device)
        assert rms(biased - (plain.float() + bias)) <= ROUNDING[dtype] * rms(plain)

    def test_rows_do_not_depend_on_each_other(self, make_method: MakeMethod, dtype: torch.dtype) -> None:
        layer, x = self.fused(make_method(torch.device(self.device), dtype), dtype), self.inputs(9, dtype)
        x[4] *= 50
        together = layer(x)
        alone = torch.cat([layer(row[None]) for row in x])
        for row in range(len(x)):
            assert rms(together[row] - alone[row]) <= ROUNDING[dtype] * rms(alone[row]), f"row {row}"

    def test_a_row_of_zeros_gives_zeros(self, make_method: MakeMethod, dtype: torch.dtype) -> None:
        parts = self.weights()
        parts[0][7] = 0
        spec = self.spec(dtype)
        layer = self.build(make_method(torch.device(self.device), dtype), spec, parts, [None] * len(parts))
        y = layer(self.inputs(3, dtype))
        assert y.isfinite().all()
        assert (y[:, 7] == 0).all()

    # Life cycle

    def test_finalizing_twice_is_harmless(self, make_method: MakeMethod, dtype: torch.dtype) -> None:
        x, method = self.inputs(3, dtype), make_method(torch.device(self.device), dtype)
        layer = self.fused(method, dtype)
        once = layer(x)
        layer.finalize()
        method.finalize()
        method.finalize()
        assert torch.equal(layer(x), once)

    def test_a_refusal_has_a_reason_and_binds_nothing(
        self, make_method: MakeMethod, refused: Mapping[str, Any] | None
    ) -> None:
        if refused is None:
            pytest.skip("the method serves every layer")
        dtype, weights = self.dtypes[0], WeightMap()
        with pytest.raises(Unsupported) as refusal:
            make_method(torch.device(self.device), dtype).linear(self.spec(dtype, **refused), weights)
        assert str(refusal.value).strip()
        assert list(weights) == []
