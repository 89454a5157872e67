"""docs/architecture.md lists every module, and imports point the way it says."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

PAGE = "docs/architecture.md"


@pytest.fixture
def order(rows: Callable[[str], list[list[str]]]) -> dict[str, int]:
    """Module -> its row in the table of modules."""
    table = [row[0] for row in rows(PAGE) if re.match(r"`\w+/?`", row[0])]
    return {name.rstrip("/"): place for place, cell in enumerate(table) for name in re.findall(r"`([^`]+)`", cell)}


def imported(file: Path) -> Iterator[str]:
    """The pymllm modules (first part only) that a file imports, also inside functions."""
    for node in ast.walk(ast.parse(file.read_text())):
        names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        yield from (name.split(".")[1] for name in names if name.startswith("pymllm."))


def module_of(file: Path, core: Path) -> str:
    return file.relative_to(core).parts[0].removesuffix(".py")


def test_no_module_imports_from_below(order: dict[str, int], root: Path) -> None:
    core = root / "core" / "pymllm"
    wrong = [
        f"{file.relative_to(core)} imports {target}"
        for file in core.rglob("*.py")
        if (module := module_of(file, core)) in order
        for target in imported(file)
        if order.get(target, -1) > order[module]
    ]
    assert wrong == []


def test_every_module_has_a_place(order: dict[str, int], root: Path) -> None:
    core = root / "core" / "pymllm"
    found = {module_of(file, core) for file in core.rglob("*.py")} - {"__init__", "__main__"}
    assert found == set(order)
