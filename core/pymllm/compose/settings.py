"""Where settings come from: a YAML file, a mapping, dotted overrides; each remembers where it was written."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import GrammarParseError, OmegaConfBaseException

from pymllm.compose.references import one_line, reference_problem
from pymllm.errors import ConfigError

_KEY = re.compile(r"[A-Za-z_][\w-]*(\.[\w-]+)*")

_SECTIONS = "it must hold sections such as 'model:'"


@dataclass(frozen=True)
class Text:
    """A value as typed on a command line: what it means depends on the key's type."""

    text: str


@dataclass(frozen=True)
class Setting:
    """One value. path: the key's parts; origin: where it was written ("quick.yaml"), empty for nowhere."""

    path: tuple[str, ...]
    value: Any
    origin: str

    @property
    def key(self) -> str:
        """The dotted key."""
        return ".".join(self.path)


def error(origin: str, key: str, message: str) -> ConfigError:
    """A ConfigError of one line: where, which key, what."""
    text = " ".join(message.split())
    return ConfigError(": ".join(part for part in (origin, key, text) if part))


def from_source(source: str | Path | Mapping[str, Any] | None) -> tuple[str, list[Setting]]:
    """The settings of a YAML file or a mapping, and its name for messages. Raises ConfigError."""
    if source is None:
        return "", []
    if isinstance(source, Mapping):
        return "", list(flatten((), source, ""))
    origin = str(source)
    return origin, list(flatten((), _read(Path(source), origin), origin))


def from_overrides(overrides: Sequence[str] | Mapping[str, Any]) -> list[Setting]:
    """The settings of ``key=value`` strings or of a mapping from dotted keys to values. Raises ConfigError."""
    if isinstance(overrides, Mapping):
        return [setting for key, value in overrides.items() for setting in _override(str(key), value)]
    if isinstance(overrides, str):
        overrides = [overrides]
    settings: list[Setting] = []
    for override in overrides:
        key, separator, text = override.partition("=")
        origin = f"override '{override}'"
        if not separator:
            raise error(origin, "", _no_assignment(override))
        settings.append(Setting(_path(key.strip(), origin), Text(text), origin))
    return settings


def flatten(path: tuple[str, ...], tree: Mapping[Any, Any], origin: str) -> Iterator[Setting]:
    """The settings of nested mappings. Raises ConfigError for a key that is not text."""
    for key, value in tree.items():
        if not isinstance(key, str):
            where = ".".join(path)
            raise error(origin, where, f"the key {key!r} is not text; put it in quotes")
        if isinstance(value, Mapping) and value:
            yield from flatten((*path, key), value, origin)
        else:
            yield Setting((*path, key), value, origin)


def shown(value: Any) -> str:
    """A value as a configuration would write it."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return repr(value)


def parse(text: str, origin: str, key: str) -> Any:
    """Read a value as YAML. Raises ConfigError."""
    try:
        return plain(OmegaConf.from_dotlist([f"v={text}"]))["v"]
    except yaml.YAMLError as exception:
        raise error(origin, key, f"'{text}' is not valid YAML") from exception
    except OmegaConfBaseException as exception:
        raise error(origin, key, reference_problem(exception)) from exception


def plain(config: Any) -> Any:
    """An OmegaConf container as dicts and lists, interpolations left as they are."""
    return OmegaConf.to_container(config, resolve=False)


def _override(key: str, value: Any) -> Iterator[Setting]:
    origin = f"override '{key}={value}'"
    path = _path(key, origin)
    if isinstance(value, Mapping):
        return flatten(path, value, origin)
    return iter([Setting(path, value, origin)])


def _no_assignment(word: str) -> str:
    if word.endswith((".yaml", ".yml")):
        return "only one file is taken; change what differs with KEY=VALUE, for example cache.page_size=32"
    return "there is no '=' in it; write KEY=VALUE, for example cache.page_size=32"


def _path(key: str, origin: str) -> tuple[str, ...]:
    if not _KEY.fullmatch(key):
        raise error(origin, "", f"'{key}' is not a dotted key such as cache.page_size")
    return tuple(key.split("."))


def _read(path: Path, origin: str) -> Mapping[Any, Any]:
    if path.suffix not in (".yaml", ".yml"):
        raise error(origin, "", f"not a .yaml file; to serve a checkpoint write model.path={origin}")
    text = ""
    try:
        text = path.read_text(encoding="utf-8")
        content = plain(OmegaConf.load(io.StringIO(text)))
    except FileNotFoundError as exception:
        raise error(origin, "", _not_found(path)) from exception
    except UnicodeDecodeError as exception:
        raise error(origin, "", "not a text file in UTF-8") from exception
    except yaml.YAMLError as exception:
        raise _malformed(origin, text, exception) from exception
    except OmegaConfBaseException as exception:
        raise error(origin, str(exception.full_key or ""), _unloadable(exception)) from exception
    except RecursionError as exception:
        raise error(origin, "", "a value contains itself") from exception
    except OSError as exception:
        reason = f"cannot be read: {exception.strerror}" if exception.strerror else _SECTIONS
        raise error(origin, "", reason) from exception
    if not isinstance(content, Mapping):
        raise error(origin, "", _SECTIONS)
    return content


def _not_found(path: Path) -> str:
    folder = path.parent
    if not folder.is_dir():
        return f"there is no folder '{folder}'"
    names = sorted(entry for entry in os.listdir(folder) if entry.endswith((".yaml", ".yml")))
    return f"there is no such file{'; beside it are ' + ', '.join(names) if names else ''}"


def _malformed(origin: str, text: str, exception: yaml.YAMLError) -> ConfigError:
    mark = getattr(exception, "problem_mark", None)
    problem = getattr(exception, "problem", None) or getattr(exception, "reason", None) or "it cannot be parsed"
    lines = len(text.splitlines())  # what is missing at the end is marked on the line after it
    where = f"{origin}:{min(mark.line + 1, lines)}" if mark else origin
    return error(where, "", f"not valid YAML: {problem}")


def _unloadable(exception: OmegaConfBaseException) -> str:
    return reference_problem(exception) if isinstance(exception, GrammarParseError) else one_line(exception)
