"""One typed configuration out of a YAML file, dotted overrides and the chosen plugins' options.

Nothing heavy is imported: of a plugin, only the light module, and only if it is named.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from omegaconf import MISSING, OmegaConf

from pymllm.compose.fill import fill
from pymllm.compose.schema import section_class
from pymllm.compose.sections import choose, sectioned
from pymllm.compose.settings import error, from_overrides, from_source
from pymllm.config import Config
from pymllm.plugin import PluginSpec
from pymllm.registry import Registry
from pymllm.registry.rules import SECTIONS

__all__ = ["auto_section", "compose", "to_dict", "to_yaml"]

API_KEY_REFERENCE = "${oc.env:PYMLLM_API_KEY}"
"""What stands for server.api_key where secrets are not shown."""


def compose(
    source: str | Path | Mapping[str, Any] | None,
    overrides: Sequence[str] | Mapping[str, Any] = (),
    registry: Registry | None = None,
) -> Config:
    """Read, merge, type and check a configuration.

    source: a .yaml file, its content as nested mappings, or None for the defaults.
    overrides: ``key=value`` strings, or a mapping from dotted keys to values; later ones win. Naming
        another plugin than the source does drops the source's options of that plugin.
    registry: where plugins are looked up; default: what is installed.

    Each plugin section is an instance of the core's section class and of the chosen plugin's options
    class at once. Raises ConfigError (which key, where it was written, what to write) and PluginError.
    """
    origin, settings = from_source(source)
    base = [part for setting in settings for part in sectioned(setting)]
    changes = [part for setting in from_overrides(overrides) for part in sectioned(setting)]
    merged, classes = choose(base, changes, registry or Registry())
    return fill(merged, classes, origin)


def auto_section(kind: str, section: Any, spec: PluginSpec) -> Any:
    """The section of a plugin that ``auto`` chose: the core's values as composed, the plugin's options at
    their defaults. Raises ConfigError when an option has no default, so that the plugin must be named."""
    core: type = SECTIONS[kind]
    cls = section_class(core, spec.config)
    complete = cls(**{entry.name: getattr(section, entry.name) for entry in fields(section)})
    for entry in fields(complete):
        if getattr(complete, entry.name) == MISSING:
            cure = f"the chosen plugin needs a value; name the plugin in {kind}.plugin and set it"
            raise error("", f"{kind}.{entry.name}", cure)
    return complete


def to_dict(config: Config) -> dict[str, Any]:
    """A configuration as plain dicts, lists, strings, numbers, booleans and None: ``compose`` makes an
    equal one of it, also in another process."""
    plain = _plain(config)
    assert isinstance(plain, dict)
    return plain


def to_yaml(config: Config, *, secrets: bool = True) -> str:
    """A configuration as YAML, every key written out: ``compose`` makes an equal one of it.

    secrets: False writes a reference to an environment variable in place of each secret that is set, so that
    the text may be shown and still composes where the variable holds the secret.
    """
    plain = to_dict(config)
    if not secrets and config.server.api_key is not None:
        plain["server"]["api_key"] = API_KEY_REFERENCE
    return OmegaConf.to_yaml(OmegaConf.create(plain))


def _plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, str):
        return _escaped(value)
    if is_dataclass(value):
        return {entry.name: _plain(getattr(value, entry.name)) for entry in fields(value)}
    if isinstance(value, Mapping):
        return {_plain(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return _escaped(str(value)) if isinstance(value, Path) else value


def _escaped(text: str) -> str:
    """Written so that a ``${`` that was a value is not taken for a reference."""
    head, *tail = text.split("${")
    for part in tail:
        stem = head.rstrip("\\")
        head = stem + "\\" * (2 * (len(head) - len(stem)) + 1) + "${" + part
    return head
