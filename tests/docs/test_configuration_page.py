"""docs/configuration.md lists every key, with the type and default that the dataclasses have."""

from __future__ import annotations

import re
import types
from collections.abc import Callable, Iterator
from dataclasses import fields
from enum import Enum
from typing import Any, Union, get_args, get_origin, get_type_hints

from omegaconf import MISSING

from pymllm.compose import compose
from pymllm.config import Config

PAGE = "docs/configuration.md"
NAMES = {str: "text", int: "integer", float: "number", bool: "true, false"}
LISTS = {str: "texts", int: "integers"}


def type_name(hint: Any) -> str:
    if get_origin(hint) in (Union, types.UnionType):
        [hint] = [one for one in get_args(hint) if one is not type(None)]
    if get_origin(hint) is list:
        return f"list of {LISTS[get_args(hint)[0]]}"
    if issubclass(hint, Enum):
        return ", ".join(member.value for member in hint)
    return NAMES[hint]


def default(value: Any) -> str:
    if value == MISSING:
        return "required"
    if value is None or isinstance(value, bool):
        return {None: "`null`", True: "`true`", False: "`false`"}[value]
    return f"`{value.value if isinstance(value, Enum) else value}`"


def keys() -> Iterator[tuple[str, str, str]]:
    """(key, type, default): of the core's sections, and of the cache policy that is the default."""
    composed = compose({"model": {"path": "anywhere"}})
    for section in (entry.name for entry in fields(Config)):
        content = getattr(composed if section == "cache" else Config(), section)
        hints = get_type_hints(type(content))
        for entry in fields(content):
            yield f"{section}.{entry.name}", type_name(hints[entry.name]), default(getattr(content, entry.name))


def test_keys_types_and_defaults_are_those_of_the_code(rows: Callable[[str], list[list[str]]]) -> None:
    listed = [row for row in rows(PAGE) if re.fullmatch(r"`\w+\.\w+`", row[0])]
    found = {row[0].strip("`"): (row[1], row[2]) for row in listed}
    assert len(found) == len(listed), "a key is listed twice"
    assert found == {key: (kind, value) for key, kind, value in keys()}
    assert all(row[3] for row in listed), "a key has no meaning"
