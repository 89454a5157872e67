"""Who measured what, where and when; and the files that results go to.

A summary line of any benchmark starts with these fields:

benchmark: "throughput", "latency", "one-batch" or "serve". run_name: as given, or null. date: ISO 8601, UTC.
command: the command line. versions: python, pymllm, torch, transformers, numpy; those that are installed.
load_average: the machine's one-minute load when the run began, null where it is not known.

Offline benchmarks add ``machine`` (cpu, cores, threads that torch uses) and ``engine``: model, architecture,
dtype, device, parameters, page_size, capacity_tokens, max_context, max_batch_tokens, max_running_requests and
plugins (kind -> "name version"). All times in result files are seconds.
"""

from __future__ import annotations

import os
import platform
import shlex
import sys
from collections.abc import Iterable, Mapping
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import msgspec

from pymllm.engine.messages import EngineInfo
from pymllm.errors import ConfigError, PymllmError

VERSIONS = ("pymllm", "torch", "transformers", "numpy")

QUIET_LOAD = 0.5
"""A one-minute load above this means that somebody else is computing, which ruins figures of a CPU."""

ENGINE_FIELDS = (
    "model", "architecture", "dtype", "kv_dtype", "device", "parameters", "page_size", "capacity_tokens", "max_context",
    "max_batch_tokens", "max_running_requests",
)  # fmt: skip


class BenchmarkError(PymllmError):
    """A run whose figures would mean nothing, such as one in which requests failed."""


def run_metadata(benchmark: str, run_name: str | None) -> dict[str, Any]:
    """The fields that every summary line starts with."""
    return {
        "benchmark": benchmark,
        "run_name": run_name,
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "versions": {"python": platform.python_version(), **_installed()},
        "load_average": load_average(),
    }


def engine_metadata(info: EngineInfo) -> dict[str, Any]:
    """What an engine is, for the field ``engine``."""
    facts = {name: getattr(info, name) for name in ENGINE_FIELDS}
    return {**facts, "plugins": {choice.kind: f"{choice.name} {choice.version}" for choice in info.choices}}


def load_average() -> float | None:
    """The machine's one-minute load, None where it is not known."""
    try:
        return os.getloadavg()[0]
    except (AttributeError, OSError):
        return None


def check_writable(path: Path | None) -> None:
    """Find out before the run that its results can be kept. Raises ConfigError."""
    if path is None:
        return
    try:
        path.open("ab").close()
    except OSError as error:
        raise ConfigError(f"results cannot be written to '{path}': {error.strerror}") from error


def append_line(path: Path, record: Mapping[str, Any]) -> None:
    """Add one JSON line to a file. Values may be dataclasses."""
    with path.open("ab") as file:
        file.write(msgspec.json.encode(record) + b"\n")


def write_lines(path: Path, records: Iterable[Any]) -> None:
    """Replace a file by one JSON line for each record (mappings or dataclasses)."""
    with path.open("wb") as file:
        for record in records:
            file.write(msgspec.json.encode(record) + b"\n")


def _installed() -> dict[str, str]:
    found = {}
    for name in VERSIONS:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
