"""docs/plugins.md shows code that is in the files it names, and names what exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pymllm import hookspecs, interfaces, plugin, registry, testing

_SHOWN = re.compile(r"^<!-- from (\S+) -->\n```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture
def page(root: Path) -> str:
    return (root / "docs" / "plugins.md").read_text()


def test_every_block_is_code_of_the_file_it_names(page: str, root: Path) -> None:
    shown = _SHOWN.findall(page)
    assert len(shown) == page.count("```python") == 3
    for path, code in shown:
        assert f"\n{code}" in (root / path).read_text(), path


def test_the_table_of_kinds_names_what_exists(page: str) -> None:
    found = re.findall(r"^\| `(\w+)` \| `(\w+)\(.*?\)` \| `(\w+)` \| `(\w+)` \|", page, re.MULTILINE)
    assert [row[0] for row in found] == list(registry.KINDS)
    for kind, spec, interface, kit in found:
        assert hasattr(hookspecs, f"pymllm_{kind}")
        assert spec in plugin.__all__
        assert interface in interfaces.__all__
        assert kit in testing.__all__
