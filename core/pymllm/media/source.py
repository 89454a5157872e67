"""Where the pixels of a picture or video are to come from."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from pymllm.errors import RequestError

MAX_URL_LENGTH = 8192
"""Characters of an http, https or file URL; browsers and servers give up at about the same length."""


@dataclass(frozen=True, slots=True)
class WebUrl:
    """An http or https URL, not yet parsed."""

    url: str


@dataclass(frozen=True, slots=True)
class DataUrl:
    """A ``data:`` URL, not yet parsed."""

    url: str


@dataclass(frozen=True, slots=True)
class LocalFile:
    """A file named by a path or ``file:`` URL. trusted: named by the owner of this process (offline), so that it
    may be anywhere; otherwise it must be below a configured folder."""

    name: str
    trusted: bool = False


@dataclass(frozen=True, slots=True)
class Encoded:
    """The bytes of a file (offline)."""

    data: bytes


@dataclass(frozen=True, slots=True, eq=False)
class Decoded:
    """A PIL image or a NumPy array (offline)."""

    value: Any


Source: TypeAlias = WebUrl | DataUrl | LocalFile | Encoded | Decoded


def from_url(url: str, *, trusted: bool = False) -> Source:
    """What a URL or an absolute path names. Raises RequestError for another scheme."""
    scheme = _scheme(url)
    if scheme == "data":
        return DataUrl(url)
    if len(url) > MAX_URL_LENGTH:
        raise RequestError(f"the URL is longer than {MAX_URL_LENGTH} characters")
    if scheme in ("http", "https"):
        return WebUrl(url)
    if scheme == "file" or url.startswith("/"):
        return LocalFile(url, trusted)
    raise RequestError("the URL must begin with https://, http://, data: or file:///, or be an absolute path")


def from_value(value: object) -> Source:
    """What an offline caller may give: a path, URL, bytes, PIL image or NumPy array. Raises RequestError."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        return Encoded(bytes(value))
    if isinstance(value, os.PathLike):
        return LocalFile(os.fsdecode(value), trusted=True)
    if isinstance(value, str):
        if _scheme(value) in ("data", "http", "https", "file"):
            return from_url(value, trusted=True)
        return LocalFile(value, trusted=True)
    if isinstance(value, np.ndarray) or is_pil(value):
        return Decoded(value)
    kind = type(value).__name__
    raise RequestError(f"must be a path, a URL, bytes, a PIL image or a NumPy array, not {kind}")


def _scheme(url: str) -> str:
    """Of the schemes that matter. (The rest of a data: URL may be long, so it is left alone.)"""
    start, colon, _ = url[:6].partition(":")
    return start.lower() if colon else ""


def is_pil(value: object) -> bool:
    """Whether it is a PIL image. PIL is not imported for that: where there is such an image, it has been."""
    module = sys.modules.get("PIL.Image")
    return module is not None and isinstance(value, module.Image)
