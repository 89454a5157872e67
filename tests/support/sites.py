"""Site folders with plugin distributions, made on the spot: no network, no pip, nothing installed for good."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

BROKEN = Path(__file__).parents[1] / "third_party" / "broken"
"""Example distributions that are broken, each in its own way."""

EXAMPLES = tuple(sorted(folder.name for folder in BROKEN.iterdir() if (folder / "pyproject.toml").is_file()))


@dataclass(frozen=True)
class Site:
    """A folder as pip leaves it: modules, and a .dist-info folder for each distribution."""

    path: Path

    def add_example(self, name: str) -> None:
        """Install a distribution of tests/third_party/broken."""
        project = tomllib.loads((BROKEN / name / "pyproject.toml").read_text())["project"]
        for module in (BROKEN / name).glob("*.py"):
            (self.path / module.name).write_text(module.read_text())
        points = [
            (group, entry, value)
            for group, entries in project["entry-points"].items()
            for entry, value in entries.items()
        ]
        self.add_metadata(project["name"], points, project["version"], project["dependencies"])

    def add_plugin(self, entry: str, module: str, source: str, group: str = "pymllm.v1") -> str:
        """Write a module and a distribution that names it in one entry point; returns the distribution."""
        (self.path / f"{module}.py").write_text(source)
        distribution = module.replace("_", "-")
        self.add_metadata(distribution, [(group, entry, module)])
        return distribution

    def add_metadata(
        self, name: str, points: list[tuple[str, str, str]], version: str = "0.1.0", requires: list[str] | None = None
    ) -> Path:
        """Write the .dist-info folder of a distribution with these (group, name, value) entry points."""
        info = self.path / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir(parents=True)
        needs = "".join(f"Requires-Dist: {requirement}\n" for requirement in requires or ())
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}")
        lines = [f"[{group}]\n{entry} = {value}\n" for group, entry, value in points]
        (info / "entry_points.txt").write_text("\n".join(lines))
        return info


@contextmanager
def importable(folder: Path) -> Iterator[Site]:
    """An empty site folder, made, on sys.path; the modules imported from it are forgotten afterwards."""
    folder.mkdir()
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    try:
        yield Site(folder)
    finally:
        sys.path.remove(str(folder))
        for name, module in list(sys.modules.items()):
            if str(getattr(module, "__file__", None) or "").startswith(str(folder)):
                del sys.modules[name]


def run_pymllm(*words: str, sites: tuple[Path, ...] = (), cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run the installed ``pymllm`` script, with extra site folders, and wait for it."""
    script = Path(sysconfig.get_path("scripts")) / "pymllm"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, sites))}
    return subprocess.run([str(script), *words], capture_output=True, text=True, env=environment, cwd=cwd, timeout=120)


def run_python(code: str, *, sites: tuple[Path, ...] = ()) -> subprocess.CompletedProcess[str]:
    """Run a snippet in a fresh interpreter, with extra site folders, and wait for it."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, sites))}
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=120)
