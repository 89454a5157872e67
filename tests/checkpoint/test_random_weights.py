"""Random weights: what each kind of parameter gets, and that the seed decides."""

from __future__ import annotations

import pytest
import torch

from pymllm.checkpoint import fill_random
from pymllm.interfaces import WeightMap, always, any_integers

SHAPES = {
    "model.layers.0.self_attn.q_proj.weight": (300, 200),
    "model.layers.0.self_attn.q_proj.bias": (300,),
    "model.layers.0.input_layernorm.weight": (200,),
    "model.layers.0.self_attn.q_norm.weight": (64,),
    "model.layers.0.mamba.A_log": (500,),
}


def filled(names: list[str], dtype: torch.dtype = torch.float32, **options: float) -> dict[str, torch.Tensor]:
    targets = {name: torch.full(SHAPES[name], torch.nan, dtype=dtype) for name in names}
    weights = WeightMap()
    for name, target in targets.items():
        weights.bind(name, target)
    fill_random(weights, device="cpu", dtype=dtype, **options)
    return targets


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_each_kind_of_parameter_gets_its_distribution(dtype: torch.dtype) -> None:
    got = filled(list(SHAPES), dtype, std=0.05)
    matrix = got["model.layers.0.self_attn.q_proj.weight"].double()
    # 60,000 draws: five standard errors of the mean and of the deviation.
    assert abs(matrix.mean()) < 5 * 0.05 / 60_000**0.5
    assert abs(matrix.std() - 0.05) < 5 * 0.05 / 120_000**0.5 + 0.05 * 2**-8
    assert not got["model.layers.0.self_attn.q_proj.bias"].any()
    assert (got["model.layers.0.input_layernorm.weight"] == 1).all()
    assert (got["model.layers.0.self_attn.q_norm.weight"] == 1).all()
    assert 0.03 < got["model.layers.0.mamba.A_log"].double().std() < 0.07


def test_the_seed_and_the_name_decide_not_the_order() -> None:
    first, again = filled(list(SHAPES), seed=1), filled(list(reversed(SHAPES)), seed=1)
    other = filled(list(SHAPES), seed=2)
    name = "model.layers.0.self_attn.q_proj.weight"
    assert all(torch.equal(first[key], again[key]) for key in SHAPES)
    assert not torch.equal(first[name], other[name])


def test_tensors_are_made_on_the_device_in_the_dtype() -> None:
    seen: list[torch.Tensor] = []
    weights = WeightMap()
    weights.bind_to("a.weight", (2, 3), seen.append)
    fill_random(weights, device=torch.device("cpu"), dtype=torch.float16)
    assert (seen[0].device.type, seen[0].dtype, tuple(seen[0].shape)) == ("cpu", torch.float16, (2, 3))


def test_a_binding_may_draw_its_own() -> None:
    """Packed codes hold no numbers of the model's dtype."""
    seen: dict[str, torch.Tensor] = {}
    weights = WeightMap()
    weights.bind_to("codes", (400, 100), lambda t: seen.update(codes=t), draw=any_integers((400, 100), torch.int8))
    weights.bind_to("scales", (3, 1), lambda t: seen.update(scales=t), draw=always(0.25, (3, 1)))
    fill_random(weights, device="cpu", dtype=torch.bfloat16)
    assert seen["scales"].tolist() == [[0.25]] * 3
    codes = seen["codes"]
    assert (codes.dtype, tuple(codes.shape)) == (torch.int8, (400, 100))
    # All from -128 to 126 are alike: of 40,000, each is expected 157 times, and some 12.5 more or less.
    counts = torch.bincount(codes.flatten().int() + 128, minlength=255)
    assert (counts - 157).abs().max() < 6 * 12.5
