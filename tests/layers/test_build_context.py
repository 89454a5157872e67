"""The build context names, counts, shares and falls back."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch

from pymllm.interfaces import AttentionContext, Linear, LinearSpec, QuantMethod, Unsupported, WeightMap
from pymllm.layers import BuildContext, FullPrecision
from pymllm.testing.reference import ReferenceAttention


class Fussy(QuantMethod):
    """Serves layers with an even number of outputs only."""

    def linear(self, spec: LinearSpec, weights: WeightMap) -> Linear:
        if sum(spec.out_features) % 2:
            raise Unsupported(f"{sum(spec.out_features)} outputs are odd")
        return FullPrecision().linear(spec, weights)


def build_context(quant: QuantMethod | None = None) -> BuildContext:
    cpu = torch.device("cpu")
    return BuildContext(
        dtype=torch.float32,
        device=cpu,
        quant=quant or FullPrecision(),
        attention=ReferenceAttention(AttentionContext(cpu, torch.float32, 4, {})),
        weights=WeightMap(),
        max_context=32,
    )


def test_names_are_relative_to_the_prefix() -> None:
    context = build_context()
    inner = context.at("model").at("layers.3")
    inner.linear(("q", "k"), 4, (4, 2), bias=True)
    inner.norm("norm", 4, 1e-6)
    context.embedding("embed", 10, 4)
    names = {f"model.layers.3.{name}" for name in ("q.weight", "k.weight", "q.bias", "k.bias", "norm.weight")}
    assert set(context.weights) == {*names, "embed.weight"}


def test_a_refused_layer_is_full_precision_and_named_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    context = build_context(Fussy())
    with caplog.at_level(logging.WARNING):
        context.at("a").linear(("q", "k"), 4, (4, 3))
        context.linear("b", 4, 6)
    assert caplog.messages == ["a.q + a.k: served in full precision, 7 outputs are odd"]
    assert set(context.weights) == {"a.q.weight", "a.k.weight", "b.weight"}


def test_attention_layers_are_counted_within_their_group() -> None:
    context = build_context()
    shape: dict[str, Any] = {"heads": 4, "kv_heads": 2, "head_dim": 16}
    layers = [
        context.at("layers.0").attention(**shape),
        context.at("layers.1").attention(**shape, group="window"),
        context.at("layers.2").attention(**shape, scale=0.5),
    ]
    assert [(layer.group, layer.index) for layer in layers] == [("kv", 0), ("window", 0), ("kv", 1)]
    assert [layer.scale for layer in layers] == [0.25, 0.25, 0.5]


def test_equal_ropes_are_one_table() -> None:
    context = build_context()
    first = context.at("a").rope({"rope_theta": 1e6}, 16)
    assert context.at("b").rope({"rope_parameters": {"rope_theta": 1e6, "rope_type": "default"}}, 16) is first
    assert context.rope({"rope_theta": 1e5}, 16) is not first
    assert first.cos_sin.shape == (32, 16)


def test_a_tied_head_is_the_embedding_and_ignores_its_copy() -> None:
    context = build_context()
    embedding = context.embedding("embed", 10, 4)
    head = context.lm_head("lm_head", 4, 10, tied=embedding)
    torch.nn.init.normal_(embedding.weight)
    assert torch.equal(head(torch.eye(4)), embedding.weight.T)
    assert context.weights.ignored("lm_head.weight")
    assert not context.weights.ignored("lm_headXweight")
    assert "lm_head.weight" not in context.weights


def test_as_many_widths_as_names_are_needed() -> None:
    with pytest.raises(ValueError, match="one width for each name"):
        build_context().linear(("q", "k"), 4, 6)
