from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sites import EXAMPLES, Site, importable


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """An empty site folder on sys.path; the modules imported from it are forgotten afterwards."""
    with importable(tmp_path / "site") as site:
        yield site


@pytest.fixture(scope="module")
def broken_site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A site folder in which every broken example is installed."""
    site = Site(tmp_path_factory.mktemp("broken"))
    for name in EXAMPLES:
        site.add_example(name)
    return site.path
