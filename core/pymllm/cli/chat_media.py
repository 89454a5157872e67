"""``/image`` and ``/video`` of the terminal chat: files become content parts, as data: URLs."""

from __future__ import annotations

import base64
import mimetypes
import re
from pathlib import Path
from typing import Any

from pymllm.errors import RequestError

KINDS = ("image", "video")

_WORD = re.compile(r""""([^"]+)"|'([^']+)'|((?:\\.|\S)+)""")
"""A path as terminals write a file that is dropped on them: in quotes, or with backslashes before spaces."""


def read_command(kind: str, argument: str) -> tuple[dict[str, Any], str]:
    """The content part of ``/image PATH [text]`` or ``/video PATH [text]``, and the text. PATH may be a web URL.

    Raises RequestError for a file that cannot be read.
    """
    found = _WORD.match(argument)
    if found is None:
        raise RequestError(f"write /{kind} FILE, or /{kind} FILE TEXT")
    double, single, bare = found.groups()
    name = double or single or re.sub(r"\\(.)", r"\1", bare)
    url = name if name.startswith(("http://", "https://")) else _data_url(kind, name)
    return {"type": f"{kind}_url", f"{kind}_url": {"url": url}}, argument[found.end() :].strip()


def _data_url(kind: str, name: str) -> str:
    path = Path(name).expanduser()
    try:
        data = path.read_bytes()
    except OSError as error:
        raise RequestError(f"'{name}' cannot be read: {error.strerror}") from None
    guessed = mimetypes.guess_type(path.name)[0] or ""
    # What the file really is, whoever decodes it finds out.
    media_type = guessed if guessed.startswith(("image/", "video/")) else "application/octet-stream"
    return f"data:{media_type};base64,{base64.b64encode(data).decode()}"
