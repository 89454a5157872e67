"""``pymllm plugins``: what is installed, and whether it can be used."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pymllm.cli.common import styled, table

if TYPE_CHECKING:
    from pymllm.registry import PluginState

_TITLE = ("KIND", "NAME", "DISTRIBUTION", "VERSION", "STATE")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """[--check] [--json]"""
    parser.add_argument("--check", action="store_true", help="import each plugin too; exit 1 if one cannot be used")
    parser.add_argument("--json", action="store_true", help="print JSON")


def execute(args: argparse.Namespace) -> int:
    """0, or 1 when --check finds a plugin that cannot be used. Without --check no plugin is imported."""
    from pymllm.registry import Registry

    states = Registry().check(load=args.check)
    print(json.dumps([_record(state) for state in states], indent=2) if args.json else _listing(states))
    return int(args.check and any(state.state != "ok" for state in states))


def _record(state: PluginState) -> dict[str, str]:
    info = state.info
    return {
        "kind": info.kind,
        "name": info.name,
        "distribution": info.distribution,
        "version": info.version,
        "state": state.state,
        "cause": state.cause,
        "summary": state.summary,
    }


def _listing(states: Sequence[PluginState]) -> str:
    if not states:
        return "No plugin is installed."
    rows = [
        (*_where(state), styled(state.state, state.state) + (f": {state.cause}" if state.cause else ""))
        for state in states
    ]
    return table(rows, _TITLE)


def _where(state: PluginState) -> tuple[str, str, str, str]:
    return state.info.kind, state.info.name, state.info.distribution, state.info.version
