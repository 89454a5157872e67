"""What the installed metadata says of plugins, before anything of them is imported."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import Distribution, EntryPoint, distributions

API_VERSION = 1
"""Version of the contract between the core and its plugins."""

GROUP = f"pymllm.v{API_VERSION}"
"""The entry-point group of that version."""

KINDS = ("model", "quant", "attention", "cache")
"""The four kinds of plugins, in the order in which they are listed."""

_ANY_GROUP = re.compile(r"pymllm\.v(\d+)")


@dataclass(frozen=True)
class PluginInfo:
    """One plugin that some installed distribution declares.

    kind, name: of the entry point "<kind>.<name>". group: "pymllm.v1" for the current contract.
    requires: the distribution's requirement strings.
    """

    kind: str
    name: str
    distribution: str
    version: str
    group: str
    entry_point: EntryPoint
    requires: tuple[str, ...] = ()

    @property
    def source(self) -> str:
        """Distribution and version, for messages."""
        return f"{self.distribution} {self.version}"

    @property
    def api(self) -> int:
        """The version of the contract that it is written for."""
        match = _ANY_GROUP.fullmatch(self.group)
        assert match is not None
        return int(match[1])


def normalized(distribution: str) -> str:
    """A distribution's name in the one form in which names are compared (PEP 503)."""
    return re.sub(r"[-_.]+", "-", distribution).lower()


def scan(path: Sequence[str] | None = None) -> list[PluginInfo]:
    """All declared plugins, of any version of the contract, sorted by kind and name.

    path: where distributions are looked for, as sys.path (the default). A distribution that is found
    twice counts once, as the first one found: that is the one which Python imports.
    """
    seen: set[str] = set()
    found: set[PluginInfo] = set()
    for distribution in distributions() if path is None else distributions(path=list(path)):
        plugins = _plugins(distribution)
        if plugins and (name := normalized(plugins[0].distribution)) not in seen:
            seen.add(name)
            found.update(plugins)
    return sorted(found, key=_order)


def _plugins(distribution: Distribution) -> list[PluginInfo]:
    try:
        declared = [point for point in distribution.entry_points if _ANY_GROUP.fullmatch(point.group)]
        if not declared:  # the name is asked for last: it costs parsing all metadata
            return []
        name, version = distribution.metadata["Name"], distribution.version
        requires = tuple(distribution.requires or ())
    except Exception:  # metadata that cannot be read declares nothing
        return []
    plugins = []
    for point in declared if name else ():
        kind, _, plugin = point.name.partition(".")
        plugins.append(PluginInfo(kind, plugin, name, version or "?", point.group, point, requires))
    return plugins


def _order(info: PluginInfo) -> tuple[int, str, str, str, str]:
    place = KINDS.index(info.kind) if info.kind in KINDS else len(KINDS)
    return place, info.kind, info.name, info.distribution, info.group
