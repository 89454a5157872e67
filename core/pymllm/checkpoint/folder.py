"""A folder in Hugging Face's layout: config.json and safetensors, in one file or in shards with an index."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pymllm.checkpoint.base import Checkpoint
from pymllm.checkpoint.safetensors_header import StoredTensor, read_header
from pymllm.errors import CheckpointError

if TYPE_CHECKING:
    from torch import Tensor

_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"


class FolderCheckpoint(Checkpoint):
    """config.json beside zero or more ``*.safetensors`` files. Raises CheckpointError without a readable
    config.json."""

    def __init__(self, path: Path, name: str) -> None:
        self.path = path
        self.name = name
        self.config = read_json(path / "config.json")
        generation = path / "generation_config.json"
        self.generation_config = read_json(generation) if generation.is_file() else {}
        self.has_weights = bool(weight_files(path))

    @cached_property
    def _headers(self) -> dict[Path, dict[str, StoredTensor]]:
        """What each shard holds. One tensor in two shards, or in none, is an error."""
        headers: dict[Path, dict[str, StoredTensor]] = {}
        owner: dict[str, Path] = {}
        for file in weight_files(self.path):
            headers[file] = read_header(file)
            for tensor in headers[file]:
                if tensor in owner:
                    raise CheckpointError(f"tensor '{tensor}' is both in {owner[tensor]} and in {file}: remove one")
                owner[tensor] = file
        for tensor, file in _read_index(self.path).items():
            if tensor not in headers.get(file, {}):
                raise CheckpointError(f"{self.path / _INDEX} says that '{tensor}' is in {file.name}, where it is not")
        return headers

    def tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: tensor.shape for header in self._headers.values() for name, tensor in header.items()}

    @property
    def weight_bytes(self) -> int:
        return sum(tensor.nbytes for header in self._headers.values() for tensor in header.values())

    def tensors(self, wanted: Callable[[str], bool] | None = None) -> Iterator[tuple[str, Tensor]]:
        from safetensors import SafetensorError, safe_open

        for file, header in self._headers.items():
            try:
                with safe_open(file, framework="pt", device="cpu") as shard:
                    for name in header:
                        if wanted is None or wanted(name):
                            yield name, shard.get_tensor(name)
            except (SafetensorError, OSError) as error:
                raise CheckpointError(f"{file} cannot be read ({error}): fetch it again") from error


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a folder: model.safetensors, else those the index names, else every one.

    Raises CheckpointError if the index is unreadable or names a file that is not there.
    """
    if (folder / _SINGLE).is_file():
        return [folder / _SINGLE]
    shards = sorted(set(_read_index(folder).values()))
    missing = [shard.name for shard in shards if not shard.is_file()]
    if missing:
        names = ", ".join(missing[:10])
        raise CheckpointError(
            f"{folder / _INDEX} names {len(missing)} missing files ({names}): fetch the checkpoint again"
        )
    # Mistral's own layout repeats the weights under other names.
    return shards or sorted(file for file in folder.glob("*.safetensors") if not file.name.startswith("consolidated"))


def _read_index(folder: Path) -> dict[str, Path]:
    """Tensor name -> shard, from the index; {} where model.safetensors makes it moot or there is none."""
    file = folder / _INDEX
    if (folder / _SINGLE).is_file() or not file.is_file():
        return {}
    shards = read_json(file).get("weight_map")
    if not isinstance(shards, dict) or not all(isinstance(shard, str) for shard in shards.values()):
        raise CheckpointError(f"{file} has no 'weight_map' of names to files: fetch it again")
    outside = [shard for shard in shards.values() if Path(shard).name != shard]
    if outside:
        raise CheckpointError(f"{file} names '{outside[0]}', which is not a file of its own folder: fetch it again")
    return {name: folder / shard for name, shard in shards.items()}


def read_json(file: Path) -> dict[str, Any]:
    """The object in a JSON file. Raises CheckpointError, naming the file, if there is none."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise CheckpointError(f"'{file.parent}' holds no {file.name}: it is not a checkpoint folder") from error
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{file} cannot be read ({error}): fetch it again") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{file} does not hold a JSON object: fetch it again")
    return content
