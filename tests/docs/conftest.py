"""The pages, their code blocks and tables, and a tiny model that stands in for the one they name."""

from __future__ import annotations

import asyncio
import re
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from pymllm.compose import compose
from pymllm.frontend.launch import launch_frontend
from pymllm.server.app import create_app
from pymllm.server.host import Host
from pymllm.server.serve import listener
from pymllm.testing.tiny import make_tiny_checkpoint
from sites import Site

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_ROOT = Path(__file__).parents[2]
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="session")
def root() -> Path:
    return _ROOT


@pytest.fixture(scope="session")
def blocks() -> Callable[..., list[str]]:
    """``blocks("README.md", "python")``: the fenced blocks of a page in that language, in order."""

    def blocks(page: str, language: str) -> list[str]:
        return [code for kind, code in _FENCE.findall((_ROOT / page).read_text()) if kind == language]

    return blocks


@pytest.fixture(scope="session")
def rows() -> Callable[[str], list[list[str]]]:
    """The rows of all tables of a page, headings left out, as cells."""

    def rows(page: str) -> list[list[str]]:
        text = _FENCE.sub("", (_ROOT / page).read_text())
        lines = [line for line in text.splitlines() if line.startswith("|") and not line.startswith("|---")]
        cells = (re.split(r"(?<!\\)\|", line)[1:-1] for line in lines)
        return [[cell.strip().replace("\\|", "|") for cell in row] for row in cells]

    return rows


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint with a tokenizer and a chat template."""
    return make_tiny_checkpoint(tmp_path_factory.mktemp("docs") / "tiny")


@dataclass(frozen=True)
class Served:
    """A real server: its URL, and its routes as "METHOD /path"."""

    url: str
    routes: frozenset[str]


@pytest.fixture(scope="session")
def served(tiny: Path) -> Iterator[Served]:
    settings = {
        "model.path": str(tiny),
        "engine.process": False,
        "engine.max_total_tokens": 8192,
        "server.port": 0,
        "log.level": "warning",
    }
    config = compose(None, settings)
    bound = listener(config.server)
    frontend = launch_frontend(config, process=False, progress=False)
    host = Host(frontend, config, bound, lambda: pytest.fail("the engine died"))
    thread = threading.Thread(target=lambda: asyncio.run(host.run()), daemon=True)
    thread.start()
    assert host.started.wait(60)
    routes = create_app(frontend, config).routes
    found = {f"{method} {route.path}" for route in routes for method in route.methods - {"HEAD"}}
    yield Served(f"http://127.0.0.1:{bound.getsockname()[1]}", frozenset(found))
    host.stop()
    thread.join(60)
    assert not thread.is_alive()


@pytest.fixture(scope="session")
def server(served: Served) -> str:
    """The URL of a real server."""
    return served.url


@pytest.fixture(scope="session")
def lifo_site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A site folder with the example plugin, as pip would install it."""
    source = _ROOT / "examples" / "pymllm-cache-lifo"
    site = Site(tmp_path_factory.mktemp("lifo"))
    shutil.copytree(source / "pymllm_cache_lifo", site.path / "pymllm_cache_lifo")
    project = tomllib.loads((source / "pyproject.toml").read_text())["project"]
    points = [(group, name, to) for group, entries in project["entry-points"].items() for name, to in entries.items()]
    site.add_metadata(project["name"], points, project["version"], project["dependencies"])
    return site.path
