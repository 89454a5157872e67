"""Types of keys: what a section holds, and how a type is called in a message."""

from __future__ import annotations

import os
import types
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, make_dataclass
from enum import Enum
from functools import cache
from typing import Any, Union, get_args, get_origin, get_type_hints

from pymllm.compose.settings import Text, parse

_NULLS = ("null", "Null", "NULL", "~")

_NAMES: dict[Any, str] = {
    int: "an integer",
    float: "a number",
    bool: "true or false",
    str: "text",
    list: "a list",
    dict: "a mapping",
}


@cache
def section_class(core: type, options: type | None) -> type:
    """The core's section and a plugin's options as one flat dataclass; the same class for the same two."""
    if options is None:
        return core
    return make_dataclass(f"{options.__name__}Section", [], bases=(options, core))


@cache
def hints(cls: type) -> Mapping[str, Any]:
    """Key -> type of a dataclass, in the order in which they are shown."""
    resolved = get_type_hints(cls)
    return {entry.name: resolved[entry.name] for entry in fields(cls)}


def required(hint: Any) -> Any:
    """The type without None."""
    members = [member for member in _members(hint) if member is not type(None)]
    return members[0] if len(members) == 1 else hint


def optional(hint: Any) -> bool:
    """Whether null is a value of the type."""
    return type(None) in _members(hint)


def expected(hint: Any) -> str:
    """How the type is called in a message."""
    members = [member for member in _members(hint) if member is not type(None)]
    names = [_name(member) for member in members]
    return " or ".join([*names, "null"] if optional(hint) else names)


def is_section(hint: Any) -> bool:
    """Whether values of the type have keys of their own that are typed."""
    return isinstance(hint, type) and is_dataclass(hint)


def is_mapping(hint: Any) -> bool:
    """Whether values of the type are mappings that are set as a whole."""
    inner = required(hint)
    return inner is dict or get_origin(inner) is dict or (is_section(inner) and optional(hint))


def read(value: Any, hint: Any, origin: str, key: str) -> Any:
    """A value as written -> the value that the type is checked with. Raises ConfigError."""
    if isinstance(value, Text):
        return _read_text(value.text, hint, origin, key)
    if isinstance(value, os.PathLike) and required(hint) is str:
        return os.fspath(value)
    return value


def _read_text(text: str, hint: Any, origin: str, key: str) -> Any:
    if required(hint) is not str:
        return parse(text, origin, key)
    if text in _NULLS and optional(hint):
        return None
    if text[:1] in ("'", '"'):
        value = parse(text, origin, key)
        return value if isinstance(value, str) else text
    return text  # never as YAML: 0123 and 1.10 are good keys and revisions


def _members(hint: Any) -> tuple[Any, ...]:
    if get_origin(hint) in (Union, types.UnionType):
        return get_args(hint)
    return (hint,)


def _name(hint: Any) -> str:
    if isinstance(hint, type) and issubclass(hint, Enum):
        return "one of " + ", ".join(hint.__members__)
    plain = get_origin(hint) or hint
    return _NAMES.get(plain, getattr(plain, "__name__", str(plain)))
