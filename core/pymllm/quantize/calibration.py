"""What a model reads while its rounding is chosen: lines of the user's own, or prose that Python brings along."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pymllm.errors import ConfigError

Messages = list[dict[str, Any]]

PIECE = 4000
"""Characters of a piece of the default text."""

KEYS = ("text", "messages", "image", "images")


def read_samples(path: Path, count: int) -> list[str | Messages]:
    """The first ``count`` lines of a JSONL file: ``{"text": ...}``, ``{"messages": [...]}`` as in the chat API, or
    ``{"image": FILE, "text": question, "answer": ...}`` (or ``"images"``, a list), files relative to its folder.

    Raises ConfigError that names the line.
    """
    try:
        lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except OSError as error:
        raise ConfigError(f"--calib '{path}' cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"--calib '{path}' is no UTF-8 text") from error
    if not lines:
        raise ConfigError(f"--calib '{path}' holds no line")
    return [_sample(line, path, number) for number, line in enumerate(lines[:count], 1)]


def _sample(line: str, path: Path, number: int) -> str | Messages:
    where = f"--calib '{path}', line {number}"
    try:
        content = json.loads(line)
    except ValueError as error:
        raise ConfigError(f"{where}: is no JSON") from error
    if not isinstance(content, Mapping) or not any(key in content for key in KEYS):
        raise ConfigError(f'{where}: must have "text", "messages" or "image"')
    if "messages" in content:
        return [_message(message, path, where) for message in _listed(content["messages"], where, "messages")]
    images = content.get("images") or ([content["image"]] if "image" in content else [])
    if not images:
        if not isinstance(content["text"], str):
            raise ConfigError(f'{where}: "text" must be a string')
        return str(content["text"])
    parts = [_image(image, path, where) for image in _listed(images, where, "images")]
    messages: Messages = [
        {"role": "user", "content": [*parts, {"type": "text", "text": str(content.get("text") or "")}]}
    ]
    if content.get("answer"):
        messages.append({"role": "assistant", "content": str(content["answer"])})
    return messages


def _message(message: Any, path: Path, where: str) -> dict[str, Any]:
    if not isinstance(message, Mapping) or "role" not in message or "content" not in message:
        raise ConfigError(f'{where}: a message must have "role" and "content"')
    content = message["content"]
    if isinstance(content, str):
        return {"role": message["role"], "content": content}
    return {
        "role": message["role"],
        "content": [_part(part, path, where) for part in _listed(content, where, "content")],
    }


def _part(part: Any, path: Path, where: str) -> dict[str, Any]:
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind == "text":
        return {"type": "text", "text": str(part.get("text") or "")}
    if kind == "image":
        return _image(part.get("image"), path, where)
    if kind == "image_url":
        url = part.get("image_url")
        return _image(url.get("url") if isinstance(url, Mapping) else url, path, where)
    raise ConfigError(f"{where}: a part of the type {kind!r} is not taken (text, image or image_url)")


def _image(name: Any, path: Path, where: str) -> dict[str, Any]:
    """Decoded later: a file of calibration pictures may hold more than fits into memory."""
    if not isinstance(name, str):
        raise ConfigError(f"{where}: an image must be the path of a file")
    file = path.parent / name.removeprefix("file://")
    if not file.is_file():
        raise ConfigError(f"{where}: there is no file '{file}'")
    return {"type": "image", "image": file}


def _listed(value: Any, where: str, name: str) -> list[Any]:
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise ConfigError(f'{where}: "{name}" must be a list')
    return list(value)


def default_texts(*, held_out: bool) -> list[str]:
    """Pieces of the documentation of the Python language, half a million characters that every Python has.

    held_out: those that calibration never reads, a fifth.
    """
    from pydoc_data.topics import topics

    whole = "\n\n".join(text for _, text in sorted(topics.items()))
    pieces = [whole[first : first + PIECE] for first in range(0, len(whole), PIECE)]
    return [piece for number, piece in enumerate(pieces) if (number % 5 == 4) is held_out]


def has_images(samples: Sequence[str | Messages]) -> bool:
    """Whether a sample holds a picture."""
    return any(
        part.get("type") == "image"
        for sample in samples
        if not isinstance(sample, str)
        for message in sample
        if not isinstance(message["content"], str)
        for part in message["content"]
    )
