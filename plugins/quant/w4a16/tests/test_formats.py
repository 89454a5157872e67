"""Each format is read as its definition says: tensors written here bit by bit, results in float64."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from pymllm.errors import CheckpointError, PluginError
from pymllm.interfaces import Linear, LinearSpec, QuantContext, Unsupported, WeightMap
from pymllm.layers import FullPrecisionLinear
from pymllm_quant_w4a16.layout import Weight4, dequantize, pack, unpack
from pymllm_quant_w4a16.linear import W4A16Linear
from pymllm_quant_w4a16.method import W4A16Method
from pymllm_quant_w4a16.plugin import W4A16Options

TERMS = 192
WIDTHS = (24, 8)
NAMES = ("model.layers.0.mlp.gate_proj", "model.layers.0.mlp.up_proj")


def words(nibbles: np.ndarray, places: tuple[int, ...] = tuple(range(8))) -> Tensor:
    """[..., 8 W] -> int32 [..., W]: number 8 w + places[p] goes to nibble p of word w."""
    out = np.zeros((*nibbles.shape[:-1], nibbles.shape[-1] // 8), np.uint32)
    for place, column in enumerate(places):
        out |= nibbles[..., column::8].astype(np.uint32) << np.uint32(4 * place)
    return torch.from_numpy(out.view(np.int32).copy())


class Quantized:
    """Random codes, scales and zero points of one matrix [N, K]. top: of the zero points, exclusive."""

    def __init__(self, seed: int, height: int, group: int, *, symmetric: bool, bottom: int = 0, top: int = 16) -> None:
        random = np.random.default_rng(seed)
        groups = TERMS // group
        self.codes = random.integers(0, 16, (height, TERMS))
        self.scales = random.uniform(0.5, 2, (height, groups)).astype(np.float16)
        self.zeros = np.full((height, groups), 8) if symmetric else random.integers(bottom, top, (height, groups))
        self.bias = random.standard_normal(height).astype(np.float32)

    @property
    def weight(self) -> np.ndarray:
        spread = TERMS // self.scales.shape[1]
        return (self.codes - self.zeros.repeat(spread, 1)) * self.scales.astype(np.float64).repeat(spread, 1)

    def compressed(self, symmetric: bool) -> dict[str, Tensor]:
        tensors = {
            "weight_packed": words(self.codes),
            "weight_scale": torch.from_numpy(self.scales),
            "weight_shape": torch.tensor(self.codes.shape),
        }
        return tensors if symmetric else {**tensors, "weight_zero_point": words(self.zeros.T).T}

    def awq(self) -> dict[str, Tensor]:
        order = (0, 2, 4, 6, 1, 3, 5, 7)
        return {
            "qweight": words(self.codes.T, order),
            "qzeros": words(self.zeros.T, order),
            "scales": torch.from_numpy(self.scales.T.copy()),
        }

    def gptq(self) -> dict[str, Tensor]:
        return {
            "qweight": words(self.codes).T,
            "qzeros": words(self.zeros.T - 1),
            "scales": torch.from_numpy(self.scales.T.copy()),
            "g_idx": torch.from_numpy(np.arange(TERMS, dtype=np.int32) // (TERMS // self.scales.shape[1])),
        }


def compressed(group: int, *, symmetric: bool = False, actorder: Any = None, **changes: Any) -> dict[str, Any]:
    strategy = {"strategy": "group", "group_size": group} if group < TERMS else {"strategy": "channel"}
    weights = {"num_bits": 4, "type": "int", "symmetric": symmetric, "dynamic": False, "actorder": actorder, **strategy}
    weights |= changes.pop("weights", {})
    groups = {"group_0": {"targets": ["Linear"], "weights": weights, "input_activations": None, **changes}}
    config = {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": groups}
    return {**config, "ignore": ["lm_head"]}


def method(config: Mapping[str, Any] | None, dtype: torch.dtype = torch.float32, **options: Any) -> W4A16Method:
    return W4A16Method(W4A16Options(**options), QuantContext(torch.device("cpu"), dtype, config))


def spec(**fields: Any) -> LinearSpec:
    defaults = {"names": NAMES, "in_features": TERMS, "out_features": WIDTHS, "bias": True, "dtype": torch.float32}
    return LinearSpec(**{**defaults, "device": torch.device("cpu"), **fields})


def load(made: W4A16Method, tensors: Mapping[str, Tensor]) -> Linear:
    """The layer with its tensors, all of which it has to take."""
    weights = WeightMap()
    layer = made.linear(spec(), weights)
    assert set(weights) == set(tensors)
    for name, tensor in tensors.items():
        binding = weights.get(name)
        assert binding is not None
        assert binding.shape == tuple(tensor.shape), name
        binding.load(tensor)
    layer.finalize()
    made.finalize()
    return layer


def check(made: W4A16Method, parts: list[Quantized], stored: list[dict[str, Tensor]]) -> None:
    tensors = {f"{name}.{key}": tensor for name, part in zip(NAMES, stored) for key, tensor in part.items()}
    tensors |= {f"{name}.bias": torch.from_numpy(part.bias) for name, part in zip(NAMES, parts)}
    x = torch.randn(5, TERMS, generator=torch.Generator().manual_seed(2))
    exact = x.double().numpy() @ np.concatenate([part.weight for part in parts]).T
    exact += np.concatenate([part.bias for part in parts])
    np.testing.assert_allclose(load(made, tensors)(x).numpy(), exact, rtol=1e-5, atol=1e-3)


GROUPS = [32, 64, TERMS]


@pytest.mark.parametrize("actorder", [None, "static", "weight"])
@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("group", GROUPS)
def test_compressed_tensors(group: int, symmetric: bool, actorder: str | None) -> None:
    parts = [Quantized(seed, height, group, symmetric=symmetric) for seed, height in enumerate(WIDTHS)]
    made = method(compressed(group, symmetric=symmetric, actorder=actorder))
    check(made, parts, [part.compressed(symmetric) for part in parts])


@pytest.mark.parametrize("group", GROUPS)
def test_awq(group: int) -> None:
    parts = [Quantized(seed, height, group, symmetric=False) for seed, height in enumerate(WIDTHS)]
    config = {"quant_method": "awq", "bits": 4, "group_size": group if group < TERMS else -1, "version": "gemm"}
    check(method({**config, "zero_point": True}), parts, [part.awq() for part in parts])


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("group", GROUPS)
def test_gptq(group: int, symmetric: bool) -> None:
    """Zero points are 1 to 16."""
    parts = [Quantized(n, h, group, symmetric=symmetric, bottom=1, top=17) for n, h in enumerate(WIDTHS)]
    config = {"quant_method": "gptq", "bits": 4, "group_size": group if group < TERMS else -1, "desc_act": False}
    check(method({**config, "sym": symmetric}), parts, [part.gptq() for part in parts])


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("group", [64, -1])
def test_online_rounds_to_nearest(group: int, symmetric: bool) -> None:
    random = np.random.default_rng(5)
    weights = [random.standard_normal((height, TERMS)).astype(np.float32) for height in WIDTHS]
    weights[0][3] = 0
    weights[0][4, :64] = np.abs(weights[0][4, :64]) + 1  # zero has to stay a number of the scale
    tensors = {f"{name}.weight": torch.from_numpy(weight) for name, weight in zip(NAMES, weights)}
    tensors |= {f"{name}.bias": torch.zeros(height) for name, height in zip(NAMES, WIDTHS)}
    layer = load(method(None, online=True, group_size=group, symmetric=symmetric), tensors)
    made = layer(torch.eye(TERMS)).T.double().numpy()
    groups = np.concatenate(weights).astype(np.float64).reshape(sum(WIDTHS), -1, group if group > 0 else TERMS)
    if symmetric:
        step = np.abs(groups).max(2, keepdims=True) / 7.5
        # Of the largest number, eight steps are one too many: it loses up to half a step, as all others.
        bound = step * 0.5001
    else:
        step = (np.maximum(groups.max(2, keepdims=True), 0) - np.minimum(groups.min(2, keepdims=True), 0)) / 15
        bound = step * 1.0001  # half for the number, half for the zero point at the ends of the range
    assert (np.abs(made.reshape(groups.shape) - groups) <= bound + 1e-12).all()
    assert not made[3].any()


def test_online_takes_smaller_groups_where_it_must_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    made = method(None, online=True)
    with caplog.at_level(logging.INFO):
        layers = [
            made.linear(spec(names=(f"l{k}",), in_features=k, out_features=(8,)), WeightMap()) for k in (256, 192, 96)
        ]
    assert [layer.scales.shape[1] for layer in layers if isinstance(layer, W4A16Linear)] == [2, 3, 3]
    assert len(caplog.messages) == 2
    assert "l192: groups of 64, since 128 does not divide 192 inputs" in caplog.messages
    with pytest.raises(Unsupported, match="80 inputs are not a multiple of 32"):
        made.linear(spec(in_features=80), WeightMap())


@pytest.mark.parametrize(
    "config, reason",
    [
        (compressed(32, weights={"num_bits": 8}), "4-bit integers, not 8-bit"),
        (compressed(32, weights={"type": "float"}), "4-bit integers, not 4-bit float"),
        (compressed(32, actorder="group"), "actorder group"),
        (compressed(16), "groups of 16"),
        (compressed(128), "192 inputs are not a multiple"),
        (compressed(32, weights={"strategy": "tensor"}), "not per tensor"),
        (compressed(32, format="int-quantized"), "not int-quantized"),
        (compressed(32, input_activations={"num_bits": 8, "dynamic": True, "strategy": "token"}), "activations"),
        ({"quant_method": "awq", "bits": 4, "modules_to_not_convert": ["up_proj"]}, "only some of its parts"),
        ({"quant_method": "gptq", "bits": 4, "modules_to_quantize": [], "group_size": 100}, "groups of 100"),
        (
            {"quant_method": "gptq", "bits": 4, "modules_in_block_to_quantize": [["mlp.up_proj"], ["mlp.down_proj"]]},
            "only some of its parts",
        ),
    ],
)
def test_layers_that_cannot_be_read_are_refused_with_a_reason(config: dict[str, Any], reason: str) -> None:
    weights = WeightMap()
    with pytest.raises(Unsupported, match=reason):
        method(config).linear(spec(), weights)
    assert list(weights) == []


@pytest.mark.parametrize("quant_method", ["awq", "gptq"])
def test_outputs_that_fill_no_word_are_refused(quant_method: str) -> None:
    with pytest.raises(Unsupported, match="8 "):
        method({"quant_method": quant_method, "bits": 4}).linear(spec(out_features=(20, 8)), WeightMap())


@pytest.mark.parametrize(
    "config, options, reason",
    [
        ({"quant_method": "gptq", "bits": 8}, {}, "bits of this gptq checkpoint is 8"),
        ({"quant_method": "gptq", "bits": 4, "desc_act": True}, {}, "desc_act of this gptq checkpoint is True"),
        ({"quant_method": "gptq", "bits": 4, "checkpoint_format": "gptq_v2"}, {}, "gptq_v2"),
        ({"quant_method": "gptq", "bits": 4, "dynamic": {"-:.*": {}}}, {}, "dynamic"),
        ({"quant_method": "awq", "bits": 3}, {}, "bits of this awq checkpoint is 3"),
        ({"quant_method": "awq", "bits": 4, "version": "gemv"}, {}, "gemv"),
        ({"quant_method": "awq", "bits": 4, "zero_point": False}, {}, "zero_point"),
        ({"quant_method": "awq", "bits": 4, "group_size": "all"}, {}, "group_size"),
        ({"quant_method": "bitsandbytes"}, {}, "not bitsandbytes"),
        ({"quant_method": "awq", "bits": 4}, {"online": True}, "quantized already"),
        (None, {}, "set quant.online to true"),
    ],
)
def test_checkpoints_that_cannot_be_read_are_refused(config: Any, options: dict[str, Any], reason: str) -> None:
    with pytest.raises(PluginError, match=reason):
        method(config, **options)


def test_an_order_of_activations_in_the_tensors_is_an_error() -> None:
    weights = WeightMap()
    method({"quant_method": "gptq", "bits": 4, "group_size": 32}).linear(spec(), weights)
    binding = weights.get(f"{NAMES[0]}.g_idx")
    assert binding is not None
    with pytest.raises(CheckpointError, match="out of order"):
        binding.load(torch.arange(TERMS, dtype=torch.int32).flip(0) // 32)


def test_another_shape_than_the_models_is_an_error() -> None:
    weights = WeightMap()
    method(compressed(32)).linear(spec(), weights)
    binding = weights.get(f"{NAMES[1]}.weight_shape")
    assert binding is not None
    with pytest.raises(CheckpointError, match="weight_shape"):
        binding.load(torch.tensor([8, TERMS - 1]))


@pytest.mark.parametrize(
    "config, options, name",
    [
        (compressed(32), {}, "lm_head"),
        ({"quant_method": "awq", "bits": 4}, {}, "lm_head"),
        ({"quant_method": "awq", "bits": 4, "modules_to_not_convert": ["visual"]}, {}, "model.visual.blocks.0.mlp.fc1"),
        ({"quant_method": "gptq", "bits": 4}, {}, "lm_head"),
        ({"quant_method": "gptq", "bits": 4, "modules_in_block_to_quantize": ["mlp.up_proj"]}, {}, "layers.0.q_proj"),
        ({"quant_method": "gptq", "bits": 4}, {"ignore": ["re:.*\\.visual\\..*"]}, "model.visual.merger"),
        (None, {"online": True}, "lm_head"),
        (None, {"online": True, "ignore": ["re:.*q_proj"]}, "layers.0.q_proj"),
    ],
)
def test_what_the_checkpoint_keeps_is_full_precision(config: Any, options: dict[str, Any], name: str) -> None:
    weights = WeightMap()
    layer = method(config, **options).linear(spec(names=(name,), out_features=(8,), bias=False), weights)
    assert isinstance(layer, FullPrecisionLinear)
    assert list(weights) == [f"{name}.weight"]


@pytest.mark.parametrize("options", [{"group_size": 64}, {"symmetric": True}, {"ignore": ["lm_head", "x"]}])
def test_what_only_online_reads_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(PluginError, match=f"quant.{next(iter(options))} needs quant.online"):
        method({"quant_method": "awq", "bits": 4}, **options)


def test_an_ignored_name_that_is_no_layer_is_an_error() -> None:
    with pytest.raises(PluginError, match=r"'nothing' of quant\.ignore"):
        method(None, online=True, ignore=["nothing"]).finalize()


def test_a_group_size_that_no_kernel_reads_is_an_error() -> None:
    with pytest.raises(ValueError, match="not 100"):
        W4A16Options(online=True, group_size=100)


@pytest.mark.parametrize("terms", [32, 256, 300, 512])
def test_the_layout_is_what_it_says(terms: int) -> None:
    codes = np.random.default_rng(1).integers(0, 16, (3, terms), dtype=np.uint8)
    packed = pack(torch.from_numpy(codes))
    raw = packed.numpy().view(np.uint32)
    for row, k in [(0, 0), (1, 31), (2, 100 % terms), (0, terms - 1), (2, 255 % terms)]:
        block, inside = divmod(k, 256)
        assert (raw[row, block * 32 + inside % 32] >> (4 * (inside // 32))) & 15 == codes[row, k]
    assert np.array_equal(unpack(packed, terms).numpy(), codes)


@pytest.mark.parametrize("value, inside", [(0.1, True), (2.0**-20, True), (1 + 2.0**-9, True), (1 + 2.0**-20, False)])
def test_scales_and_zero_points_are_kept_exactly(value: float, inside: bool) -> None:
    """In one word, where the scale has 16 bits; a scale in full float32 has no room for a zero point."""
    scales = torch.tensor([[value, 0.5], [0.25, 2.0**-60]])
    scales[0, 0] = scales[0, 0] if value > 1 else scales[0, 0].bfloat16().float()
    zeros = torch.tensor([[0, 16], [7, 8]], dtype=torch.uint8)
    words = torch.zeros(2, 32, dtype=torch.int32)
    weight = Weight4.of(words, scales, zeros, 256, 128)
    assert (weight.inside, weight.zeros is None) == (inside, inside)
    assert torch.equal(weight.scale(slice(0, 2)), scales)
    assert torch.equal(weight.zero(slice(0, 2)), zeros.float())
    symmetric = Weight4.of(words, scales, torch.full_like(zeros, 8), 256, 128)
    assert (symmetric.inside, symmetric.zeros) == (False, None)
    assert torch.equal(symmetric.scale(slice(1, 2)), scales[1:])
    assert torch.equal(symmetric.zero(slice(1, 2)), torch.full((1, 2), 8.0))


def test_scales_know_which_types_hold_them() -> None:
    def types(*scales: float) -> tuple[bool, bool]:
        weight = Weight4.of(torch.zeros(1, 64, dtype=torch.int32), torch.tensor([scales]), None, 512, 256)
        return weight.has_scales_of(torch.bfloat16), weight.has_scales_of(torch.float16)

    assert types(0.5, 0.25) == (True, True)
    assert types(0.5, 1 + 2.0**-9) == (False, True)
    assert types(2.0**-60, 1.0) == (True, False)


def test_dequantized_rows_are_the_definition() -> None:
    part = Quantized(3, 8, 64, symmetric=False)
    weight = Weight4.of(
        pack(torch.from_numpy(part.codes.astype(np.uint8))),
        torch.from_numpy(part.scales),
        torch.from_numpy(part.zeros.astype(np.uint8)),
        TERMS,
        64,
    )
    np.testing.assert_allclose(dequantize(weight, slice(2, 7), torch.float32).numpy(), part.weight[2:7], rtol=1e-6)
