"""Reading config.json: a key that is null counts as missing, as in transformers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from pymllm.errors import CheckpointError

T = TypeVar("T", int, float, bool, str)


def optional(config: Mapping[str, Any], key: str, default: T) -> T:
    """``config[key]``, or the default when it is missing or null. Raises CheckpointError for another type
    than the default's (an int may stand for a float)."""
    value = config.get(key)
    return default if value is None else _typed(key, value, type(default))


def required(config: Mapping[str, Any], key: str, kind: type[T]) -> T:
    """``config[key]``, of the given type. Raises CheckpointError when it is missing, null or of another type."""
    value = config.get(key)
    if value is None:
        raise CheckpointError(f"the checkpoint's config has no '{key}': it must hold one to be served")
    return _typed(key, value, kind)


def _typed(key: str, value: Any, kind: type[T]) -> T:
    if kind is float and type(value) is int:
        return kind(value)
    if type(value) is not kind:
        raise CheckpointError(f"the checkpoint's config has {key} = {value!r}: it must be of type {kind.__name__}")
    return value
