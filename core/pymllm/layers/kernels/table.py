"""Measured tilings, kept in the user's cache for each device, Triton and version of the kernels."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from pymllm.layers.kernels.tiling import GPU, Tiling


def table_path(device: torch.device) -> Path:
    """Where a device's table is kept, under ``XDG_CACHE_HOME`` or ``~/.cache``."""
    try:
        triton = version("triton")
    except PackageNotFoundError:
        triton = "none"
    source = b"".join((Path(__file__).parent / f"{kind}_triton.py").read_bytes() for kind in ("gemv", "dot"))
    name = torch.cuda.get_device_name(device).replace(" ", "-").replace("/", "-")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "pymllm" / "kernels" / f"{name}-triton{triton}-{hashlib.sha256(source).hexdigest()[:12]}.json"


def read_table(path: Path) -> dict[str, Tiling]:
    """The tilings of a file by key; none where there is no file or it cannot be read."""
    try:
        entries = json.loads(path.read_text())
        return {key: Tiling(**fields) for key, fields in entries.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def write_table(path: Path, table: Mapping[str, Tiling]) -> None:
    """Write tilings by key, in one step, so that a reader never finds half a file. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(f".{os.getpid()}")
    partial.write_text(json.dumps({key: asdict(tiling) for key, tiling in table.items()}, indent=1))
    partial.replace(path)


def describe(device: torch.device) -> GPU:
    """What choices depend on."""
    properties = torch.cuda.get_device_properties(device)
    # Older versions of PyTorch do not say; 99 KiB is the least of any device that the kernels run on.
    shared = getattr(properties, "shared_memory_per_block_optin", 99 * 1024)
    return GPU(properties.multi_processor_count, shared)


@lru_cache
def load_table(device: torch.device) -> Mapping[str, Tiling]:
    """The device's table, read once in a process."""
    return read_table(table_path(device))
