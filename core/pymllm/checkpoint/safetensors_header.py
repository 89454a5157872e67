"""The header of a safetensors file: what it holds, known without reading a weight or importing torch.

Format: 8 bytes little-endian length, that many bytes of JSON {name: {dtype, shape, data_offsets}}, data.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from pymllm.errors import CheckpointError

_LONGEST_HEADER = 100_000_000  # the limit of the safetensors library


@dataclass(frozen=True)
class StoredTensor:
    """shape: as stored. nbytes: its size in the file."""

    shape: tuple[int, ...]
    nbytes: int


def read_header(file: Path) -> dict[str, StoredTensor]:
    """Name -> tensor of one safetensors file.

    Raises CheckpointError, naming the file, when it is truncated or not a safetensors file: found here,
    at once, and not after minutes of loading.
    """
    try:
        size = file.stat().st_size
        with file.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            if size < 8 or length > min(size - 8, _LONGEST_HEADER):
                raise CheckpointError(f"{file} is truncated or not a safetensors file: fetch it again")
            header = json.loads(stream.read(length))
        header.pop("__metadata__", None)
        tensors = {name: _tensor(entry) for name, entry in header.items()}
        end = max((entry["data_offsets"][1] for entry in header.values()), default=0)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{file} is corrupt or not a safetensors file: fetch it again") from error
    if 8 + length + end != size:
        raise CheckpointError(f"{file} has {size} bytes where {8 + length + end} were expected: fetch it again")
    return tensors


def _tensor(entry: dict) -> StoredTensor:
    start, end = entry["data_offsets"]
    return StoredTensor(tuple(entry["shape"]), end - start)
