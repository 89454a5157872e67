from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sites import EXAMPLES, Site


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """An empty site folder on sys.path; the modules imported from it are forgotten afterwards."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    yield Site(folder)
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None) or "").startswith(str(folder)):
            del sys.modules[name]


@pytest.fixture(scope="module")
def broken_site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A site folder in which every broken example is installed."""
    site = Site(tmp_path_factory.mktemp("broken"))
    for name in EXAMPLES:
        site.add_example(name)
    return site.path
