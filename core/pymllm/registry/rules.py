"""What a spec that a hook returned must fulfil."""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import Any

from omegaconf import OmegaConf

from pymllm.config import AttentionConfig, CacheConfig, ModelConfig, QuantConfig
from pymllm.plugin import (
    AttentionOptions,
    AttentionSpec,
    CacheOptions,
    CachePolicySpec,
    ModelOptions,
    ModelSpec,
    PluginSpec,
    QuantOptions,
    QuantSpec,
)

SPECS: dict[str, type[PluginSpec]] = {
    "model": ModelSpec,
    "quant": QuantSpec,
    "attention": AttentionSpec,
    "cache": CachePolicySpec,
}
"""What the hook of each kind returns."""

OPTIONS: dict[str, type[Any]] = {
    "model": ModelOptions,
    "quant": QuantOptions,
    "attention": AttentionOptions,
    "cache": CacheOptions,
}
"""What the options of each kind derive from."""

SECTIONS: dict[str, type[Any]] = {
    "model": ModelConfig,
    "quant": QuantConfig,
    "attention": AttentionConfig,
    "cache": CacheConfig,
}
"""The core's part of each kind's section."""


def spec_problem(kind: str, spec: Any) -> str | None:
    """What is wrong with a spec (a verb phrase, its subject the plugin), or None."""
    expected = SPECS[kind]
    if not isinstance(spec, expected):
        return f"must return one {expected.__name__} from pymllm_{kind}, but returned {_brief(spec)}"
    return _reference_problem(spec) or _offer_problem(spec) or _options_problem(kind, spec.config)


def _brief(value: Any) -> str:
    return "nothing" if value is None else f"a {type(value).__name__}"


def _reference_problem(spec: PluginSpec) -> str | None:
    for name in ("factory", "probe", "processor", "evaluation"):
        value = getattr(spec, name, "a:b")
        if name in ("processor", "evaluation") and value == "":
            continue  # not every model has one
        module, _, attribute = value.partition(":") if isinstance(value, str) else ("", "", "")
        if not module or not attribute:
            return f"declares {name}={value!r}, which is not of the form 'package.module:Attribute'"
    return None


def _offer_problem(spec: PluginSpec) -> str | None:
    for name in ("architectures", "formats"):
        value = getattr(spec, name, ())
        if isinstance(value, str) or not all(isinstance(entry, str) for entry in value):
            return f"declares {name}={value!r}, which is not a tuple of strings"
    return None


def _options_problem(kind: str, config: Any) -> str | None:
    base = OPTIONS[kind]
    if not isinstance(config, type) or not issubclass(config, base):
        return f"declares config={config!r}, which is not a subclass of pymllm.plugin.{base.__name__}"
    own = {entry.name: entry for entry in fields(config)}
    if "__dataclass_fields__" not in vars(config):
        return f"has options {config.__name__} that are not decorated with @dataclass"
    clash = sorted(own.keys() & {entry.name for entry in fields(SECTIONS[kind])})
    if clash:
        return f"has an option '{clash[0]}', which is a key of the core's '{kind}' section"
    bare = [name for name, entry in own.items() if entry.default is MISSING and entry.default_factory is MISSING]
    if bare:
        return f"has an option '{bare[0]}' without a default (omegaconf.MISSING makes it one that must be set)"
    return _type_problem(config)


def _type_problem(config: type) -> str | None:
    try:
        OmegaConf.structured(config)
    except Exception as error:  # whatever resolving a stranger's annotations may raise
        reason = str(getattr(error, "msg", None) or error).splitlines() or [type(error).__name__]
        return f"has options {config.__name__} that cannot stand in a configuration: {reason[0]}"
    return None
