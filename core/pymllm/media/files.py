"""Files on this machine: below the configured folders for strangers, anywhere for the owner of the process."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from urllib.parse import unquote, urlsplit

from pymllm.errors import ConfigError, RequestError
from pymllm.media.source import LocalFile

_OPEN = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW
"""O_NONBLOCK: opening a FIFO would wait for whoever writes to it."""

_FOLDER = os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW | getattr(os, "O_PATH", os.O_RDONLY)


class Folders:
    """The folders of ``media.allowed_local_folders``; below them, strangers may name files."""

    def __init__(self, folders: Sequence[str]) -> None:
        """Raises ConfigError for what is no folder, or not named from the root."""
        for folder in folders:
            if not os.path.isabs(folder) or not os.path.isdir(folder):
                raise ConfigError(f"media.allowed_local_folders: '{folder}' is not the absolute path of a folder")
        self._folders = [os.path.realpath(folder) for folder in folders]

    def read(self, file: LocalFile, max_bytes: int) -> bytes:
        """Its content. Raises RequestError: outside the folders (symbolic links are followed first), not a regular
        file, unreadable, larger than ``max_bytes``."""
        try:
            path = local_path(file.name)
            descriptor = _open_file(os.path.realpath(path)) if file.trusted else self._open(path)
            with os.fdopen(descriptor, "rb") as opened:
                content = opened.read(max_bytes + 1)
        except RequestError:
            raise
        except (OSError, ValueError) as error:  # ValueError: a NUL, or half a surrogate pair, in the name
            reason = getattr(error, "strerror", None) or "not a valid name"
            raise RequestError(f"the file cannot be read: {reason}") from None
        if len(content) > max_bytes:
            raise RequestError(f"the file is larger than {max_bytes} bytes (media.max_bytes)")
        if not content:
            raise RequestError("the file is empty")
        return content

    def _open(self, path: str) -> int:
        if not self._folders:
            raise RequestError("this server reads no local files (media.allowed_local_folders)")
        real = os.path.realpath(path)
        for folder in self._folders:
            if os.path.commonpath([folder, real]) == folder:
                return _open_below(folder, os.path.relpath(real, folder).split(os.sep))
        # The same sentence whether or not there is such a file.
        raise RequestError("the file is not below a folder that this server may read (media.allowed_local_folders)")


def local_path(name: str) -> str:
    """The path that a path or ``file:`` URL names. Raises RequestError for a URL of another machine."""
    if name[:5].lower() != "file:":
        return name
    try:
        url = urlsplit(name)
    except ValueError:
        raise RequestError("the file: URL is not valid") from None
    if url.netloc.lower() not in ("", "localhost"):
        raise RequestError("the file: URL names another machine; write file:///PATH")
    if "?" in name or "#" in name:
        raise RequestError("write ? and # in a file: URL as %3F and %23")
    if not url.path.startswith("/"):
        raise RequestError("the file: URL must hold an absolute path; write file:///PATH")
    return unquote(url.path, errors="surrogateescape")


def _open_below(folder: str, parts: Sequence[str]) -> int:
    """Opened from folder to folder, following no link: nobody can put one there after the path was checked."""
    descriptor = os.open(folder, _FOLDER)
    try:
        for part in parts[:-1]:
            parent, descriptor = descriptor, os.open(part, _FOLDER, dir_fd=descriptor)
            os.close(parent)
        return _open_file(parts[-1], descriptor)
    finally:
        os.close(descriptor)


def _open_file(path: str, folder: int | None = None) -> int:
    _check_kind(os.stat(path, dir_fd=folder, follow_symlinks=False))  # to open some devices is to use them
    descriptor = os.open(path, _OPEN, dir_fd=folder)
    try:
        _check_kind(os.fstat(descriptor))
    except RequestError:
        os.close(descriptor)
        raise
    return descriptor


def _check_kind(status: os.stat_result) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise RequestError("that is a folder, not a file")
    if not stat.S_ISREG(status.st_mode):
        raise RequestError("that is not a regular file")
