"""Pictures and videos beside a text prompt, as SGLang's ``image_data`` and ``video_data`` name them."""

from __future__ import annotations

from typing import Any

from pymllm.errors import RequestError
from pymllm.media import ImageReference, Reference, VideoReference
from pymllm.media.source import from_url

Kind = type[ImageReference] | type[VideoReference]


def media_of(given: Any, field: str, kind: Kind, batched: bool, count: int) -> list[list[Reference]]:
    """The references of each of ``count`` prompts.

    given: a URL or a list of them; if ``batched`` a list that holds a URL, a list or null for each prompt. Raises
    RequestError that names ``field``.
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


def _references(given: Any, field: str, kind: Kind) -> list[Reference]:
    if isinstance(given, list):
        return [_reference(one, f"{field}[{index}]", kind) for index, one in enumerate(given)]
    return [] if given is None else [_reference(given, field, kind)]


def _reference(given: Any, where: str, kind: Kind) -> Reference:
    if not isinstance(given, str):
        raise RequestError(f"{where} must be a URL, a data: URL or a path", where)
    try:
        return kind(where, from_url(given))
    except RequestError as error:
        raise RequestError(f"{where}: {error}", where) from None
