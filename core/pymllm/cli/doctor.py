"""``pymllm doctor``: what this machine has, which plugins can run here, and why others cannot."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pymllm.cli.common import styled, table
from pymllm.errors import PluginError

if TYPE_CHECKING:
    from pymllm.plugin import AttentionSpec
    from pymllm.registry import PluginState, Registry


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """[--json]"""
    parser.add_argument("--json", action="store_true", help="print JSON")


def execute(args: argparse.Namespace) -> int:
    """Always 0: that something cannot run here is an answer. Imports every plugin's implementation."""
    from pymllm.cli.machine import facts, rows
    from pymllm.registry import Registry

    registry = Registry()
    machine = facts()
    devices = ["cuda", "cpu"] if machine["cuda"]["devices"] else ["cpu"]
    plugins = [_examine(registry, state, devices) for state in registry.check()]
    if args.json:
        print(json.dumps({"machine": machine, "plugins": plugins}, indent=2))
    else:
        print(f"{styled('Machine', 'title')}\n{table(rows(machine), indent='  ')}\n")
        print(f"{styled('Plugins', 'title')}\n{_listing(plugins)}")
    return 0


def _listing(plugins: Sequence[dict[str, Any]]) -> str:
    if not plugins:
        return "  none is installed"
    rows = [
        (plugin["kind"], plugin["name"], plugin["version"], styled(*_verdict(plugin)) + f": {plugin['note']}")
        for plugin in plugins
    ]
    return table(rows, indent="  ")


def _verdict(plugin: dict[str, Any]) -> tuple[str, str]:
    return ("can run", "ok") if plugin["usable"] else ("cannot run", "broken")


def _examine(registry: Registry, state: PluginState, devices: Sequence[str]) -> dict[str, Any]:
    usable, note = (False, state.cause) if state.state != "ok" else _try(registry, state, devices)
    info = state.info
    return {
        "kind": info.kind,
        "name": info.name,
        "distribution": info.distribution,
        "version": info.version,
        "usable": usable,
        "note": note,
    }


def _try(registry: Registry, state: PluginState, devices: Sequence[str]) -> tuple[bool, str]:
    kind, name = state.info.kind, state.info.name
    try:
        spec = registry.load(kind, name)
        factory = registry.factory(kind, name, spec)
        if kind == "attention":
            usable, note = _probe(registry, name, spec, devices)  # type: ignore[arg-type]
            return usable, note + _kv_dtypes(factory)
    except PluginError as error:
        return False, str(error.__cause__ or error)  # the cause alone: the line already says which plugin
    return True, spec.summary or "it can be imported"


def _kv_dtypes(factory: Any) -> str:
    """What a backend declares that its cache can be kept as."""
    capabilities = getattr(factory, "capabilities", None)
    kinds = sorted(kind.value for kind in getattr(capabilities, "kv_dtypes", ()))
    return f"; attention.kv_dtype: {', '.join(kinds)}" if kinds else ""


def _probe(registry: Registry, name: str, spec: AttentionSpec, devices: Sequence[str]) -> tuple[bool, str]:
    import torch

    probe = registry.probe(name, spec)
    answers = {}
    for device in devices:
        try:
            answers[device] = probe(torch.device(device))
        except Exception as error:  # a probe should say why not; one that raises says it too
            answers[device] = f"its probe raised {type(error).__name__}: {' '.join(str(error).split())}"
    runs = [device for device, reason in answers.items() if reason is None]
    notes = [f"on {' and '.join(runs)}"] if runs else []
    notes += [f"not on {device}: {reason}" for device, reason in answers.items() if reason is not None]
    return bool(runs), "; ".join(notes)
