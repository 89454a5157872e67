"""Which layer is quantized how: groups that divide, what is kept, what a recipe says."""

from __future__ import annotations

from pathlib import Path

import pytest

from pymllm.errors import ConfigError
from pymllm.quantize.plan import Rule, make_plan, matches, read_recipe
from pymllm.quantize.scheme import SCHEMES

LAYERS = {
    "model.layers.0.self_attn.q_proj": 576,
    "model.layers.0.mlp.down_proj": 1536,
    "model.layers.0.mlp.odd": 100,
    "model.visual.blocks.0.attn.qkv": 128,
    "lm_head": 576,
}
KEEP = ("re:.*lm_head$",)


def test_a_smaller_group_is_taken_where_the_wanted_one_does_not_divide() -> None:
    plan = make_plan(LAYERS, SCHEMES["w4a16"], 128, KEEP, [])
    assert plan.groups == {
        64: ["model.layers.0.self_attn.q_proj"],
        128: ["model.layers.0.mlp.down_proj", "model.visual.blocks.0.attn.qkv"],
    }
    assert plan.kept == ["model.layers.0.mlp.odd", "lm_head"]
    assert plan.notes == [
        "1 layers of 576 columns, which 128 does not divide: groups of 64 instead (as model.layers.0.self_attn.q_proj)",
        "1 layers of 100 columns, which 128 does not divide: left in full precision, no group size fits "
        "(as model.layers.0.mlp.odd)",
    ]


def test_rows_and_int8_have_no_groups() -> None:
    for scheme, size in (("w4a16", -1), ("w8a8", 128)):
        plan = make_plan(LAYERS, SCHEMES[scheme], size, KEEP, [])
        assert list(plan.groups) == [None]
        assert len(plan.quantized) == 4
        assert plan.notes == []


def test_the_first_rule_that_names_a_layer_counts() -> None:
    rules = [
        Rule("re:model\\.visual\\..*", group_size=32),
        Rule("*.down_proj", bits=16),
        Rule("lm_head", bits=4),
        Rule("*", group_size=64),
    ]
    plan = make_plan(LAYERS, SCHEMES["w4a16"], 128, KEEP, rules)
    assert plan.groups[32] == ["model.visual.blocks.0.attn.qkv"]
    assert plan.groups[64] == ["model.layers.0.self_attn.q_proj", "lm_head"]
    assert "model.layers.0.mlp.down_proj" in plan.kept


def test_a_rule_that_names_nothing_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"'model\.nothing' names no linear layer, such as model\.layers\.0"):
        make_plan(LAYERS, SCHEMES["w4a16"], 128, KEEP, [Rule("model.nothing")])
    with pytest.raises(ConfigError, match="no layer is left"):
        make_plan(LAYERS, SCHEMES["w4a16"], 128, KEEP, [Rule("*", bits=16)])


def test_patterns() -> None:
    assert matches("re:model\\.x", "model.x.y")
    assert not matches("re:x", "model.x")
    assert matches("*.x", "model.x")
    assert not matches("model", "model.x")


def test_a_recipe(tmp_path: Path) -> None:
    file = tmp_path / "recipe.yaml"
    file.write_text('"re:.*visual.*": {bits: 4, group_size: 64}\n"*.down_proj": {bits: 16}\n')
    assert read_recipe(file, SCHEMES["w4a16"]) == [Rule("re:.*visual.*", 4, 64), Rule("*.down_proj", 16, None)]


@pytest.mark.parametrize(
    ("text", "scheme", "message"),
    [
        ("- 3", "w4a16", "must map patterns to settings"),
        ("a: 3", "w4a16", "'a': takes a mapping of bits and group_size"),
        ("a: {size: 3}", "w4a16", "'a': takes a mapping"),
        ("a: {bits: 8}", "w4a16", "bits must be 4, as --scheme w4a16 has it, or 16"),
        ("a: {bits: 4}", "w8a8", "bits must be 8"),
        ("a: {group_size: 48}", "w4a16", "group_size 48: it must be 128, 64 or 32, or -1 for rows"),
        ("a: {group_size: 64}", "w8a8", "int8 weights have no groups"),
        ("'re:(': {bits: 4}", "w4a16", "is no regular expression"),
        ("a: [", "w4a16", "is no YAML"),
    ],
)
def test_a_wrong_recipe_is_named(tmp_path: Path, text: str, scheme: str, message: str) -> None:
    file = tmp_path / "recipe.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_recipe(file, SCHEMES[scheme])
    with pytest.raises(ConfigError, match="cannot be read"):
        read_recipe(tmp_path / "none.yaml", SCHEMES[scheme])
