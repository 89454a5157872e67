"""The memory limit of the control group that this process is in, of either version (containers, systemd units)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_NAMES = {2: ("memory.max", "memory.current"), 1: ("memory.limit_in_bytes", "memory.usage_in_bytes")}
_RECLAIMABLE = {2: ("active_file", "inactive_file"), 1: ("total_active_file", "total_inactive_file")}


@dataclass(frozen=True)
class GroupMemory:
    """Bytes. limit: most that the group may use. free: of it, file cache that can be dropped counted as free."""

    limit: int
    free: int


def group_memory(root: Path = Path("/")) -> GroupMemory | None:
    """The tightest limit among the process's group and those around it, with the least that is free under any;
    None when there is no limit. root: of the file system."""
    found = [memory for version, folder in _groups(root) if (memory := _read(version, folder)) is not None]
    if not found:
        return None
    return GroupMemory(min(memory.limit for memory in found), min(memory.free for memory in found))


def _groups(root: Path) -> Iterator[tuple[int, Path]]:
    """The folders of the process's group and its parents. Inside a container, the path that the process is
    told may lie outside of what is mounted; then only the mounted top is there to be read."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        version, top = (1, root / "sys/fs/cgroup/memory") if controllers else (2, root / "sys/fs/cgroup")
        folder = top / path.lstrip("/")
        for group in (folder, *folder.parents):
            if group.is_relative_to(top):
                yield version, group


def _read(version: int, folder: Path) -> GroupMemory | None:
    try:
        limit, used = ((folder / name).read_text().strip() for name in _NAMES[version])
        stat = (folder / "memory.stat").read_text().splitlines()
    except OSError:
        return None
    if not limit.isdigit() or int(limit) >= 1 << 60:  # "max", or version 1's way to say so
        return None
    fields = dict(line.split()[:2] for line in stat)
    reclaimable = sum(int(fields.get(name, 0)) for name in _RECLAIMABLE[version])
    return GroupMemory(int(limit), max(0, int(limit) - int(used) + reclaimable))
