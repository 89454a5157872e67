"""Models that an installed Python package brings along: ``package:NAME/FOLDER`` names a folder, or a file, in it."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

from pymllm.errors import CheckpointError

_REFERENCE = re.compile(r"package:([A-Za-z_]\w*)/(.+)")


def locate(text: str) -> Path:
    """Where it is. Imports nothing. Raises CheckpointError."""
    match = _REFERENCE.fullmatch(text)
    if match is None:
        raise CheckpointError(f"'{text}' is not of the form package:NAME/FOLDER")
    name, inside = match[1], Path(match[2])
    if inside.is_absolute() or ".." in inside.parts:
        raise CheckpointError(f"'{text}' leads out of the package: name a folder inside it")
    try:
        spec = find_spec(name)
    except ValueError:  # what runs as a script has none
        spec = None
    if spec is None:
        raise CheckpointError(f"no package '{name}' is installed: install the distribution that '{text}' comes with")
    for folder in spec.submodule_search_locations or ():
        if (Path(folder) / inside).exists():
            return Path(folder) / inside
    raise CheckpointError(f"package '{name}' holds no '{inside.as_posix()}': check model.path, or install it anew")
