"""Reads what benchmarks wrote, and checks it against what their modules document."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def assert_documented(record: dict[str, Any], *modules: Any) -> None:
    """Every field of the record is named in the docstring of one of the modules."""
    text = " ".join(module.__doc__ or "" for module in modules)
    words = {word.strip(".,:;(){}") for word in text.split()}
    undocumented = [name for name in record if name not in words and f"``{name}``" not in text]
    assert undocumented == []
