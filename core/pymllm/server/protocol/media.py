"""Pictures and videos beside a text prompt, as SGLang's ``image_data`` and ``video_data`` name them."""

from __future__ import annotations

from typing import Any

from pymllm.errors import RequestError
from pymllm.media import Reference, parse_part


def media_of(given: Any, field: str, kind: str, batched: bool, count: int) -> list[list[Reference]]:
    """The references of each of ``count`` prompts.

    given: one or a list; if ``batched`` a list that holds one, a list or null for each prompt. kind: of the content
    part that each stands for. Raises RequestError that names ``field``.
    """
    if given in (None, []):
        return [[] for _ in range(count)]
    if not batched:
        return [_references(given, field, kind)]
    if not isinstance(given, list):
        raise RequestError(f"{field} must be a list with an entry for each prompt", field)
    if len(given) != count:
        raise RequestError(f"{field} has {len(given)} entries for {count} prompts", field)
    return [_references(one, f"{field}[{index}]", kind) for index, one in enumerate(given)]


def _references(given: Any, field: str, kind: str) -> list[Reference]:
    if isinstance(given, list):
        return [parse_part({"type": kind, kind: one}, f"{field}[{index}]") for index, one in enumerate(given)]
    return [] if given is None else [parse_part({"type": kind, kind: given}, field)]
