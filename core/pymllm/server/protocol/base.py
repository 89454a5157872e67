"""The base of all request bodies: strict types, no unknown fields, null means "not given"."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from pymllm.errors import RequestError

Neutral = Mapping[str, tuple[Any, ...]]
"""Field name -> values that ask for nothing."""

BodyT = TypeVar("BodyT", bound="Body")


class Body(BaseModel):
    """A JSON object of a request.

    unsupported: fields of the protocol that this server does not implement -> the values that ask for
        nothing (accepted); any other value is refused by name.
    informative: fields that only carry information; accepted and dropped.
    """

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, hide_input_in_errors=True)
    unsupported: ClassVar[Neutral] = {}
    informative: ClassVar[frozenset[str]] = frozenset()

    @model_validator(mode="before")
    @classmethod
    def _only_what_counts(cls, raw: Any) -> Any:
        if not isinstance(raw, dict):
            return raw
        given = {key: value for key, value in raw.items() if value is not None and key not in cls.informative}
        for name, neutral in cls.unsupported.items():
            if name in given and not _is_one_of(given.pop(name), neutral):
                raise RequestError(f"{name} is not supported", name)
        return given

    def renames(self) -> Mapping[str, str]:
        """Field names of SamplingParams and of the frontend -> what this protocol calls them."""
        return {}


def _is_one_of(value: Any, neutral: tuple[Any, ...]) -> bool:
    return any(type(value) is type(one) and value == one for one in neutral)


def parse(kind: type[BodyT], raw: object) -> BodyT:
    """Validate a decoded JSON value. Raises RequestError that names the field."""
    if not isinstance(raw, dict):
        raise RequestError("the request body must be a JSON object")
    try:
        return kind.model_validate(raw)
    except ValidationError as error:
        raise _first_error(error) from None


def _first_error(error: ValidationError) -> RequestError:
    first = error.errors(include_url=False, include_input=False)[0]
    cause = first.get("ctx", {}).get("error")
    path = field_path(first["loc"])
    if isinstance(cause, RequestError):
        inner = cause.field or ""
        joined = f"{path}.{inner}" if path and inner and not inner.startswith("[") else path + inner
        message = str(cause)
        return RequestError(message if joined == inner else f"{joined}: {message}", joined or None)
    if first["type"] == "extra_forbidden":
        return RequestError(f"unknown field '{path}'", path)
    if first["type"] == "missing":
        return RequestError(f"{path} is required", path)
    reason = first["msg"][:1].lower() + first["msg"][1:]
    return RequestError(f"{path}: {reason}" if path else reason, path or None)


def field_path(loc: tuple[int | str, ...]) -> str:
    """("messages", 0, "role") -> "messages[0].role"; at most 200 characters, as keys are a client's."""
    text = ""
    for step in loc:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return text[:200]


def renamed(error: RequestError, names: Mapping[str, str]) -> RequestError:
    """The same error in the words of a protocol that names the field differently."""
    field = error.field
    if field is None or field not in names:
        return error
    message = str(error)
    if message.startswith(field + " "):
        message = names[field] + message[len(field) :]
    return RequestError(message, names[field])
