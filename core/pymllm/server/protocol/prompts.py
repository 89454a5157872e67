"""Prompts of the text routes: a string, strings, token ids, or lists of token ids."""

from __future__ import annotations

from typing import Any

from pymllm.errors import RequestError
from pymllm.frontend.generation import Prompt

_MAX_TOKEN_ID = 2**31 - 1


def as_prompts(value: Any, field: str) -> list[Prompt]:
    """One entry per prompt, as strings or token-id lists. Raises RequestError that names ``field``."""
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list) or not value:
        raise RequestError(f"{field} must be a string, a list of strings, token ids, or lists of token ids", field)
    first = value[0]
    if isinstance(first, str):
        return _all_strings(value, field)
    if isinstance(first, list):
        return [as_token_ids(one, f"{field}[{i}]") for i, one in enumerate(value)]
    return [as_token_ids(value, field)]


def as_token_ids(value: Any, field: str) -> list[int]:
    """A non-empty list of token ids (the engine checks them against the vocabulary). Raises RequestError."""
    if not isinstance(value, list) or not value:
        raise RequestError(f"{field} must be a non-empty list of token ids", field)
    for token in value:
        if type(token) is not int or not 0 <= token <= _MAX_TOKEN_ID:
            raise RequestError(f"{field} must hold token ids only, and {token!r:.40} is none", field)
    return value


def _all_strings(value: list[Any], field: str) -> list[Prompt]:
    for i, one in enumerate(value):
        if not isinstance(one, str):
            raise RequestError(f"{field}[{i}] must be a string like the others", f"{field}[{i}]")
    return list(value)
