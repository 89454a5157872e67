"""The parts that a message's content may be made of: text, and pictures and videos as references."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pymllm.errors import RequestError

if TYPE_CHECKING:
    from pymllm.media import Reference


def check_text(text: str, field: str) -> str:
    """Raises RequestError for text that is not valid Unicode (JSON can spell half a surrogate pair)."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RequestError(f"{field} is not valid Unicode: lone surrogate at {error.start}", field) from None
    return text


class Parts:
    """Reads the parts of one conversation, in order.

    references: to the pictures and videos read so far. Nothing of them is fetched or decoded here.
    """

    def __init__(self, *, media: bool = False, offline: bool = False) -> None:
        """media: the model takes them; otherwise they are refused. offline: they may be what
        :func:`pymllm.media.parse_part` takes from Python callers."""
        self.references: list[Reference] = []
        self._media = media
        self._offline = offline

    def read(self, parts: Sequence[Any], path: str) -> str | list[dict[str, str]]:
        """A message's content as its template takes it: for a model with media a list of parts, of which those with
        media hold their kind alone; for others one text, of lines.

        Raises RequestError with the path of what is wrong.
        """
        read = [self._part(part, f"{path}[{index}]") for index, part in enumerate(parts)]
        return read if self._media else "\n".join(part["text"] for part in read)

    def _part(self, part: Any, path: str) -> dict[str, str]:
        if not isinstance(part, Mapping) or not isinstance(part.get("type"), str):
            raise RequestError(f"{path} must be an object with a type", path)
        return self._text(part, path) if part["type"] == "text" else self._medium(part, path)

    def _text(self, part: Mapping[str, Any], path: str) -> dict[str, str]:
        for key, value in part.items():
            if key not in ("type", "text") and value is not None:
                name = f"{path}.{str(key).encode('ascii', 'backslashreplace').decode():.40}"
                raise RequestError(f"{name}: unknown field of a text part", name)
        if not isinstance(part.get("text"), str):
            raise RequestError(f"{path}.text must be a string", f"{path}.text")
        return {"type": "text", "text": check_text(part["text"], path)}

    def _medium(self, part: Mapping[str, Any], path: str) -> dict[str, str]:
        from pymllm.media import PART_TYPES, ImageReference, parse_part

        kind = part["type"]
        if kind not in PART_TYPES:
            known = ", ".join(("text", *PART_TYPES)) if self._media else "text"
            raise RequestError(f"{path}: there is no part of type {kind!a:.60}, but {known}", f"{path}.type")
        if not self._media:
            raise RequestError(f"{path}: {kind} is not supported by this model, which takes text only", f"{path}.type")
        reference = parse_part(part, path, offline=self._offline)
        self.references.append(reference)
        return {"type": "image" if isinstance(reference, ImageReference) else "video"}
