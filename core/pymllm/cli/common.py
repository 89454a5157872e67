"""What several subcommands share: configuration arguments and aligned output."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pymllm.config import Config

_OVERRIDE = re.compile(r"\s*[A-Za-z_][\w.-]*\s*=")

COLORS = {"ok": "32", "conflict": "33", "outdated": "33", "broken": "31", "title": "1"}
"""Style -> its ANSI code."""


def add_config_arguments(parser: argparse.ArgumentParser, *, required: bool = False) -> None:
    """Add ``[CONFIG] [key=value ...]``, read by :func:`config_source` and :func:`compose_arguments`."""
    parser.add_argument(
        "settings",
        nargs="+" if required else "*",
        metavar="CONFIG | KEY=VALUE",
        help="a .yaml file, and values that override it, such as cache.page_size=32",
    )


def config_source(settings: Sequence[str]) -> tuple[str | None, list[str]]:
    """The words of the command line -> the configuration file, if there is one, and the overrides."""
    for place, word in enumerate(settings):
        if not _OVERRIDE.match(word):
            return word, [*settings[:place], *settings[place + 1 :]]
    return None, list(settings)


def compose_arguments(args: argparse.Namespace) -> Config:
    """Compose what :func:`add_config_arguments` read. Raises ConfigError and PluginError."""
    from pymllm.compose import compose

    source, overrides = config_source(args.settings)
    return compose(source, overrides)


def styled(text: str, style: str) -> str:
    """The text in a color of COLORS where standard output is a terminal, otherwise as it is."""
    return f"\x1b[{COLORS[style]}m{text}\x1b[0m" if style in COLORS and sys.stdout.isatty() else text


def table(rows: Iterable[Sequence[str]], title: Sequence[str] = (), indent: str = "") -> str:
    """Rows as aligned columns, two spaces apart; the last column is as long as it needs."""
    cells = [list(row) for row in ([title, *rows] if title else rows)]
    widths = [max(map(len, column)) for column in zip(*cells)]
    lines = [
        indent + "  ".join([*(cell.ljust(width) for cell, width in zip(row[:-1], widths)), row[-1]]).rstrip()
        for row in cells
    ]
    if title and lines:
        lines[0] = styled(lines[0], "title")
    return "\n".join(lines)
