"""Which plugin each section names, and so which keys it takes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from pymllm.compose.references import reference_problem
from pymllm.compose.schema import hints, section_class
from pymllm.compose.settings import Setting, Text, error, flatten, parse, shown
from pymllm.config import Config, EngineConfig, LogConfig, MediaConfig, ServerConfig
from pymllm.errors import PluginError
from pymllm.registry import KINDS, Registry
from pymllm.registry.rules import OPTIONS, SECTIONS
from pymllm.spelling import did_you_mean

NAMES = tuple(entry.name for entry in fields(Config))
"""The sections of a configuration."""

_PLAIN: dict[str, type] = {
    "engine": EngineConfig,
    "server": ServerConfig,
    "media": MediaConfig,
    "log": LogConfig,
}

_UNNAMED = {"model": ("auto",), "quant": ("auto", "none"), "attention": ("auto",), "cache": ()}
"""What a section's ``plugin`` may be besides a name; then it has the core's keys alone."""


def sectioned(setting: Setting) -> Iterator[Setting]:
    """A setting -> settings of keys within sections: ``cache: radix`` becomes ``cache.plugin``. Raises ConfigError."""
    name, *rest = setting.path
    if rest or name not in NAMES:
        yield setting
        return
    value = parse(setting.value.text, setting.origin, name) if isinstance(setting.value, Text) else setting.value
    if isinstance(value, Mapping):
        yield from flatten(setting.path, value, setting.origin)
    elif isinstance(value, str) and name == "model":
        raise error(setting.origin, name, f"this is a section; write model.path for the weights: model.path={value}")
    elif isinstance(value, str) and name in KINDS:
        yield replace(setting, path=(name, "plugin"), value=value)
    elif value is None and name == "quant":
        raise error(setting.origin, name, "write 'none' for full precision or 'auto' to follow the checkpoint")
    elif value is not None:
        raise error(setting.origin, name, f"this is a section: it holds keys, not {shown(value)}. {_keys(name)}")


def choose(
    base: Sequence[Setting], changes: Sequence[Setting], registry: Registry
) -> tuple[list[Setting], dict[str, type]]:
    """The settings that hold, later ones last, and the class of each section. Raises ConfigError, PluginError."""
    kept = list(base)
    classes = dict(_PLAIN)
    for kind in KINDS:
        named = _last(kind, [*base, *changes])
        plugin = _name(kind, named, [*base, *changes])
        if any(setting.path == (kind, "plugin") for setting in changes) and plugin != _former(kind, base):
            kept = [setting for setting in kept if setting.path[0] != kind or setting.path[1] in _common(kind)]
        classes[kind] = _section(kind, plugin, named, registry)
    for setting in [*base, *changes]:
        if setting.path[0] not in NAMES:
            raise _unknown_section(setting, classes)
    return [*kept, *changes], classes


def _section(kind: str, plugin: str, named: Setting | None, registry: Registry) -> type:
    core: type = SECTIONS[kind]
    if plugin in _UNNAMED[kind]:
        return section_class(core, None)
    origin = named.origin if named else ""
    if plugin == "auto":
        known = sorted({info.name for info in registry.installed() if info.kind == kind})
        raise error(origin, f"{kind}.plugin", f"there is no 'auto' here; name one of {', '.join(known)}")
    try:
        return section_class(core, registry.load(kind, plugin).config)
    except PluginError as problem:
        prefix = f"{origin}: " if origin else ""
        raise PluginError(f"{prefix}{kind}.plugin: {problem}") from problem


def _common(kind: str) -> list[str]:
    """Keys that a kind's section has whichever plugin is named."""
    return [entry.name for cls in (SECTIONS[kind], OPTIONS[kind]) for entry in fields(cls)]


def _keys(section: str) -> str:
    """A sentence that lists the keys of a section, whose plugin is not known."""
    if section in KINDS:
        return f"{section} has: {', '.join(_common(section))} and the options of its plugin"
    return f"{section} has: {', '.join(hints(_PLAIN[section]))}"


def _last(kind: str, settings: Sequence[Setting]) -> Setting | None:
    named = [setting for setting in settings if setting.path == (kind, "plugin")]
    return named[-1] if named else None


def _former(kind: str, base: Sequence[Setting]) -> str | None:
    try:
        return _name(kind, _last(kind, base), base)
    except Exception:  # it is overridden: that it cannot be read does not matter any more
        return None


def _name(kind: str, named: Setting | None, settings: Sequence[Setting]) -> str:
    if named is None:
        default: str = SECTIONS[kind]().plugin
        return default
    value = named.value.text if isinstance(named.value, Text) else named.value
    if isinstance(value, str) and "${" in value:
        value = _resolved(named, settings)
    if not isinstance(value, str) or not value.strip():
        raise error(named.origin, named.key, f"expected the name of a {kind} plugin, got {shown(value)}")
    return value


def _resolved(named: Setting, settings: Sequence[Setting]) -> Any:
    tree = OmegaConf.create()
    for setting in settings:
        value = setting.value.text if isinstance(setting.value, Text) else setting.value
        try:
            OmegaConf.update(tree, setting.key, value)
        except OmegaConfBaseException:
            continue  # not what is asked for here; reported when the section is filled
    try:
        return OmegaConf.select(tree, named.key)
    except OmegaConfBaseException as problem:
        raise error(named.origin, named.key, reference_problem(problem)) from problem


def _unknown_section(setting: Setting, classes: Mapping[str, type]) -> Exception:
    name = setting.path[0]
    home = next((section for section in NAMES if name in hints(classes[section])), None)
    hint = f" Did you mean '{home}.{name}'?" if home else did_you_mean(name, NAMES)
    if not hint:
        hint = did_you_mean(name, [f"{section}.{key}" for section in NAMES for key in hints(classes[section])])
    return error(setting.origin, setting.key, f"there is no section '{name}'.{hint} Sections: {', '.join(NAMES)}")
