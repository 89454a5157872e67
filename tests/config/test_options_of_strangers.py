"""A plugin's options may be nested, listed, mapped and checked by their own class; all are typed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pymllm.compose import auto_section, compose, to_dict
from pymllm.config import Config, QuantConfig
from pymllm.errors import ConfigError
from pymllm.registry import Registry
from sites import Site

SOURCE = """
from __future__ import annotations
from dataclasses import dataclass, field
from omegaconf import MISSING
from pymllm.plugin import QuantOptions, QuantSpec, hookimpl

@dataclass
class Tuning:
    rounds: int = 3
    name: str = "plain"

@dataclass
class Mine(QuantOptions):
    bits: int = 8
    scale: float | None = None
    skip: list[str] = field(default_factory=list)
    weights: dict[str, float] = field(default_factory=dict)
    tuning: Tuning = field(default_factory=Tuning)

    def __post_init__(self):
        if self.bits not in (4, 8):
            raise ValueError(f"bits is 4 or 8, not {self.bits}")

@dataclass
class Demanding(QuantOptions):
    calibration: str = MISSING

@hookimpl
def pymllm_quant():
    return QuantSpec(factory="a:b", config=%s)
"""


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Registry:
    monkeypatch.syspath_prepend(str(tmp_path))
    site = Site(tmp_path)
    site.add_plugin("quant.mine", "options_of_mine", SOURCE % "Mine")
    site.add_plugin("quant.demanding", "options_demanding", SOURCE % "Demanding")
    return Registry()


def composed(registry: Registry, quant: Any, *overrides: str) -> Config:
    return compose({"model": {"path": "x"}, "quant": quant}, overrides, registry)


def refusal(registry: Registry, quant: Any, *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        composed(registry, quant, *overrides)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_they_are_filled(registry: Registry) -> None:
    given = {"plugin": "mine", "skip": ["a"], "weights": {"q": 1}, "tuning": {"rounds": 5}}
    config = composed(
        registry, given, "quant.scale=1e-3", "quant.weights.k=2", "quant.tuning.name=0x", "quant.skip=[b, c]"
    )
    quant = config.quant
    assert isinstance(quant, QuantConfig)
    assert (quant.bits, quant.scale, quant.skip, quant.weights) == (8, 0.001, ["b", "c"], {"q": 1.0, "k": 2.0})
    assert (quant.tuning.rounds, quant.tuning.name) == (5, "0x")
    assert compose(to_dict(config), registry=registry) == config


@pytest.mark.parametrize(
    "override, expected",
    [
        ("quant.bits=x", "quant.bits: expected an integer, got 'x'"),
        ("quant.bits=3", "quant: bits is 4 or 8, not 3"),
        ("quant.skip=a", "quant.skip: expected a list, got 'a'"),
        ("quant.weights=3", "quant.weights: expected a mapping, got 3"),
        ("quant.weights.q=x", "quant.weights.q: "),
        ("quant.tuning=3", "quant.tuning: this is a section: it holds rounds, name"),
        ("quant.tuning.runds=3", "quant.tuning.runds: unknown key 'runds'. Did you mean 'rounds'?"),
        ("quant.tuning.rounds=x", "quant.tuning.rounds: expected an integer, got 'x'"),
    ],
)
def test_they_are_typed(registry: Registry, override: str, expected: str) -> None:
    assert expected in refusal(registry, "mine", override)


def test_one_that_must_be_set(registry: Registry) -> None:
    assert "quant.calibration: needs a value" in refusal(registry, "demanding")
    assert composed(registry, "demanding", "quant.calibration=x").quant.calibration == "x"


def test_a_plugin_chosen_by_auto_gets_its_defaults(registry: Registry) -> None:
    section = composed(registry, "auto").quant
    complete = auto_section("quant", section, registry.load("quant", "mine"))
    assert isinstance(complete, registry.load("quant", "mine").config)
    assert (complete.plugin, complete.bits, complete.tuning.rounds) == ("auto", 8, 3)
    with pytest.raises(ConfigError, match=r"quant.calibration: .*name the plugin in quant.plugin"):
        auto_section("quant", section, registry.load("quant", "demanding"))
