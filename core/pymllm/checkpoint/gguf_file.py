"""The layout of a GGUF file: metadata and where its tensors lie, read in one quick pass.

Format (version 2 and 3): magic, version, counts of tensors and keys; key-values; tensor descriptions;
padding to ``general.alignment``; data. The gguf package's own reader makes an array object for every token
of the vocabulary, which takes seconds; this one makes plain Python values.
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from pymllm.errors import CheckpointError

_MAGIC = b"GGUF"
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_FLOAT32, _STRING, _ARRAY = 6, 8, 9


@dataclass(frozen=True)
class GgufTensor:
    """shape: outermost dimension first, as torch has it. offset: from the start of the file, bytes."""

    name: str
    type: GGMLQuantizationType
    shape: tuple[int, ...]
    offset: int
    nbytes: int


class GgufFile:
    """A memory-mapped GGUF file. metadata: key -> str, int, float, bool or list. tensors: name -> place.

    Raises CheckpointError, naming the file, if it cannot be read, is truncated, or is of another version.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as stream:
                self._data = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
            self._position = 0
            self.metadata, self.tensors = self._parse()
        except (struct.error, ArithmeticError, KeyError, ValueError, OSError) as error:
            raise self._broken(str(error)) from error

    def read(self, tensor: GgufTensor) -> np.ndarray:
        """The bytes of a tensor, a read-only uint8 view of the file: [*outer dimensions, bytes of a row]."""
        view = np.frombuffer(self._data, np.uint8, tensor.nbytes, tensor.offset)
        return view.reshape(*tensor.shape[:-1], -1) if tensor.nbytes else view

    @cached_property
    def architecture(self) -> str:
        """``general.architecture``."""
        return str(self.metadata.get("general.architecture", ""))

    def _broken(self, why: str) -> CheckpointError:
        return CheckpointError(f"{self.path} is truncated or not a GGUF file ({why}): fetch it again")

    def _parse(self) -> tuple[dict[str, Any], dict[str, GgufTensor]]:
        if self._data[:4] != _MAGIC:
            raise ValueError("no GGUF magic at its start")
        self._position = 4
        version = self._scalar("I")
        if version not in (2, 3):
            raise ValueError(f"version {version}, where 2 or 3 is read")
        tensor_count, key_count = self._scalar("Q"), self._scalar("Q")
        metadata = {}
        for _ in range(key_count):
            key = self._string()
            metadata[key] = self._value(self._scalar("I"))
        described = [self._description() for _ in range(tensor_count)]
        alignment = int(metadata.get("general.alignment", 32))
        start = -(-self._position // alignment) * alignment
        return metadata, {entry[0]: self._place(start, *entry) for entry in described}

    def _scalar(self, code: str) -> Any:
        layout = struct.Struct("<" + code)
        (value,) = layout.unpack_from(self._data, self._position)
        self._position += layout.size
        return value

    def _string(self) -> str:
        length = self._scalar("Q")
        end = self._position + length
        if end > len(self._data):
            raise ValueError("a string runs past its end")
        text = self._data[self._position : end].decode("utf-8")
        self._position = end
        return text

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY:
            return self._array()
        value = self._scalar(_SCALARS[kind])
        # The shortest decimal that means this float32: 1e-05, as config.json had it, not 9.9999997e-06.
        return float(str(np.float32(value))) if kind == _FLOAT32 else value

    def _array(self) -> list[Any]:
        kind, count = self._scalar("I"), self._scalar("Q")
        if kind == _STRING:
            return [self._string() for _ in range(count)]
        if kind == _ARRAY:
            raise ValueError("an array of arrays")
        values = np.frombuffer(self._data, np.dtype("<" + _SCALARS[kind]), count, self._position)
        self._position += values.nbytes
        return list(values.tolist())

    def _description(self) -> tuple[str, int, tuple[int, ...], int]:
        name = self._string()
        dimensions = [self._scalar("Q") for _ in range(self._scalar("I"))]
        kind, offset = self._scalar("I"), self._scalar("Q")
        return name, kind, tuple(reversed(dimensions)), offset

    def _place(self, start: int, name: str, kind: int, shape: tuple[int, ...], offset: int) -> GgufTensor:
        quantization = GGMLQuantizationType(kind)
        block, block_bytes = GGML_QUANT_SIZES[quantization]
        if shape and shape[-1] % block:
            raise ValueError(f"rows of {name} are no multiple of {block}")
        tensor = GgufTensor(name, quantization, shape, start + offset, prod(shape) // block * block_bytes)
        if tensor.offset + tensor.nbytes > len(self._data):
            raise ValueError(f"{name} ends at byte {tensor.offset + tensor.nbytes} of {len(self._data)}")
        return tensor
