"""Which layer is quantized how."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from pymllm.errors import ConfigError
from pymllm.quantize.scheme import Scheme

GROUP_SIZES = (128, 64, 32)

FULL = 16
"""Bits of a layer that a recipe leaves in full precision."""


@dataclass(frozen=True)
class Rule:
    """What a recipe says of the layers that a pattern names. None: as the command line has it."""

    pattern: str
    bits: int | None = None
    group_size: int | None = None


@dataclass(frozen=True)
class Plan:
    """groups: group size (None: a whole row) -> names of the layers. kept: layers in full precision. notes: what a user
    should know, a sentence each."""

    groups: dict[int | None, list[str]]
    kept: list[str]
    notes: list[str] = field(default_factory=list)

    @property
    def quantized(self) -> list[str]:
        """All layers that are."""
        return [name for names in self.groups.values() for name in names]


def matches(pattern: str, name: str) -> bool:
    """A pattern is a name with shell wildcards, or a regular expression after "re:" that matches from the start."""
    return re.match(pattern[3:], name) is not None if pattern.startswith("re:") else fnmatchcase(name, pattern)


def read_recipe(path: Path, scheme: Scheme) -> list[Rule]:
    """{pattern: {bits, group_size}} of a YAML file; the first pattern that names a layer counts. Raises ConfigError
    that names the entry."""
    from omegaconf import OmegaConf

    try:
        content: Any = OmegaConf.to_container(OmegaConf.load(path))
    except OSError as error:
        raise ConfigError(f"--recipe '{path}' cannot be read: {error.strerror}") from error
    except Exception as error:
        raise ConfigError(f"--recipe '{path}' is no YAML: {str(error).splitlines()[0]}") from error
    if not isinstance(content, Mapping):
        raise ConfigError(f"--recipe '{path}' must map patterns to settings")
    return [_rule(str(pattern), value, path, scheme) for pattern, value in content.items()]


def _rule(pattern: str, value: Any, path: Path, scheme: Scheme) -> Rule:
    where = f"--recipe '{path}', '{pattern}'"
    if not isinstance(value, Mapping) or set(value) - {"bits", "group_size"}:
        raise ConfigError(f"{where}: takes a mapping of bits and group_size")
    if pattern.startswith("re:"):
        try:
            re.compile(pattern[3:])
        except re.error as error:
            raise ConfigError(f"{where}: is no regular expression: {error}") from error
    bits, size = value.get("bits"), value.get("group_size")
    if bits not in (None, scheme.bits, FULL):
        raise ConfigError(f"{where}: bits must be {scheme.bits}, as --scheme {scheme.name} has it, or {FULL} for none")
    if size is not None and (scheme.bits == 8 or size not in (*GROUP_SIZES, -1)):
        told = (
            "int8 weights have no groups" if scheme.bits == 8 else f"it must be {_either(GROUP_SIZES)}, or -1 for rows"
        )
        raise ConfigError(f"{where}: group_size {size}: {told}")
    return Rule(pattern, bits, size)


def make_plan(
    layers: Mapping[str, int], scheme: Scheme, group_size: int, keep: Sequence[str], rules: Sequence[Rule]
) -> Plan:
    """layers: name of each linear layer -> columns of its weight. group_size: where no rule says another; -1: a row.
    keep: patterns of layers that stay in full precision unless a rule says otherwise.

    Raises ConfigError for a rule that names no layer, and where nothing is left to quantize.
    """
    unused = [rule.pattern for rule in rules if not any(matches(rule.pattern, name) for name in layers)]
    if unused:
        raise ConfigError(f"--recipe: '{unused[0]}' names no linear layer, such as {', '.join(list(layers)[:3])}")
    groups: dict[int | None, list[str]] = {}
    kept, smaller = [], dict[tuple[int, int], list[str]]()
    for name, columns in layers.items():
        rule = next((rule for rule in rules if matches(rule.pattern, name)), None)
        bits = rule.bits if rule is not None else None
        if bits == FULL or (bits is None and any(matches(pattern, name) for pattern in keep)):
            kept.append(name)
            continue
        wanted = (rule.group_size if rule is not None else None) or group_size
        found = None if scheme.bits == 8 or wanted == -1 else _dividing(wanted, columns)
        if found == 0:
            kept.append(name)
            smaller.setdefault((wanted, 0), []).append(name)
            continue
        groups.setdefault(found, []).append(name)
        if found is not None and found != wanted:
            smaller.setdefault((wanted, found), []).append(name)
    if not groups:
        raise ConfigError("no layer is left to quantize: everything is kept in full precision")
    return Plan(groups, kept, [_note(*sizes, names, layers) for sizes, names in smaller.items()])


def _dividing(wanted: int, columns: int) -> int:
    """The largest group size up to ``wanted`` that divides the columns; 0 if none does."""
    return next((size for size in GROUP_SIZES if size <= wanted and columns % size == 0), 0)


def _note(wanted: int, found: int, names: list[str], layers: Mapping[str, int]) -> str:
    cure = f"groups of {found} instead" if found else "left in full precision, no group size fits"
    columns = sorted({layers[name] for name in names})
    return f"{len(names)} layers of {_either(columns)} columns, which {wanted} does not divide: {cure} (as {names[0]})"


def _either(values: Sequence[int]) -> str:
    words = [str(value) for value in values]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"
