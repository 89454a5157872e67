"""The many ways in which offline prompts may be given, brought into one form."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

from pymllm.errors import RequestError
from pymllm.frontend.generation import PlacedPrompt, Prompt, UnplacedPrompt
from pymllm.sampling import SamplingParams

if TYPE_CHECKING:
    from pymllm.media import Reference

OnePrompt = Prompt | Mapping[str, Any] | PlacedPrompt
"""Text, token ids, {"prompt": text} or {"prompt_token_ids": ids}, these two also with "images" and "videos"; or what
LLM.read_chat made."""

TextAndPrompt = tuple[str | None, UnplacedPrompt | PlacedPrompt]
"""A prompt's text, if it was given as text, and its token ids."""

_TOKENS = ("prompt", "prompt_token_ids")
_MEDIA = {"images": "image", "videos": "video"}


class Named:
    """Puts ``where`` before the message of a RequestError that leaves the block."""

    def __init__(self, where: str) -> None:
        self._where = where

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, RequestError) and self._where:
            raise RequestError(f"{self._where}: {error}", error.field) from error


def listed(prompts: Any) -> tuple[bool, list[Any]]:
    """(whether it is one prompt, the prompts as a list). Raises RequestError for what is neither."""
    if isinstance(prompts, (str, Mapping, PlacedPrompt)):
        return True, [prompts]
    if not isinstance(prompts, (list, tuple)):
        raise RequestError("prompts must be a prompt or a list of prompts", "prompt")
    if prompts and all(isinstance(item, int) for item in prompts):
        return True, [prompts]
    return False, list(prompts)


def conversations(messages: Any) -> tuple[bool, list[Any]]:
    """(whether it is one conversation, the conversations as a list)."""
    many = isinstance(messages, (list, tuple)) and messages and isinstance(messages[0], (list, tuple))
    return (False, list(messages)) if many else (True, [messages])


def read_prompt(prompt: object, encode: Callable[[str], list[int]]) -> TextAndPrompt:
    """Raises RequestError for what is no prompt, and what ``encode`` raises."""
    if isinstance(prompt, PlacedPrompt):
        return None, prompt
    references: list[Reference] = []
    if isinstance(prompt, Mapping):
        known = [key for key in _TOKENS if key in prompt]
        if len(known) != 1 or not prompt.keys() <= {*_TOKENS, *_MEDIA}:
            raise RequestError(
                'a prompt object must hold either "prompt" or "prompt_token_ids", and may hold "images" and "videos"',
                "prompt",
            )
        references = [reference for key in _MEDIA for reference in _references(prompt.get(key), key)]
        prompt = prompt[known[0]]
    if isinstance(prompt, str):
        return prompt, UnplacedPrompt(encode(prompt), references)
    if not isinstance(prompt, (list, tuple)):
        raise RequestError("a prompt must be a string or a list of token ids", "prompt")
    return None, UnplacedPrompt(list(prompt), references)


def _references(given: object, key: str) -> list[Reference]:
    """Of ``images`` or ``videos``: each a content part, or what stands in one."""
    from pymllm.media import ImageReference, parse_part

    if given is None:
        return []
    if not isinstance(given, (list, tuple)):
        raise RequestError(f"{key} must be a list", key)
    kind = _MEDIA[key]
    found = []
    for index, value in enumerate(given):
        where = f"{key}[{index}]"
        part = value if isinstance(value, Mapping) else {"type": kind, kind: value}
        reference = parse_part(part, where, offline=True)
        if isinstance(reference, ImageReference) != (kind == "image"):
            raise RequestError(f"{where}: a part of type {part['type']} is no {kind}", where)
        found.append(reference)
    return found


def params_for(params: Any, count: int) -> list[SamplingParams]:
    """One SamplingParams per prompt. Raises RequestError for another type or number."""
    if params is None:
        return [SamplingParams()] * count
    each = list(params) if isinstance(params, (list, tuple)) else [params] * count
    if len(each) != count:
        raise RequestError(f"{len(each)} sampling_params for {count} prompts; give one, or one for each")
    for one in each:
        if not isinstance(one, SamplingParams):
            raise RequestError(f"sampling_params must be a SamplingParams, not {type(one).__name__}")
    return each
