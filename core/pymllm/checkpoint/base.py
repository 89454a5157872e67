"""What every kind of checkpoint offers, whatever file format is beneath it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pymllm.errors import CheckpointError

if TYPE_CHECKING:
    import torch
    from torch import Tensor


class Checkpoint(ABC):
    """A checkpoint on the local disk. Opening one reads no weights and does not import torch.

    name: as the user wrote it. path: the folder or ``.gguf`` file. has_weights: False for a folder that
    holds only a config.json (good for ``load_format: random``).
    config: the content of config.json, or the same made from a GGUF file's metadata.
    generation_config: the content of generation_config.json, or {}.
    Tensor names are those of Hugging Face's ``transformers``.
    """

    name: str
    path: Path
    has_weights: bool
    config: dict[str, Any]
    generation_config: dict[str, Any]

    @property
    def text_config(self) -> dict[str, Any]:
        """The part of ``config`` that describes the language model: the whole, or that of a multimodal model."""
        return self.config.get("text_config") or self.config

    @abstractmethod
    def tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        """Name -> shape of every tensor, without reading weights; {} without weights. Raises CheckpointError,
        naming the file, if a file is missing, truncated or corrupt."""

    @abstractmethod
    def tensors(self, wanted: Callable[[str], bool] | None = None) -> Iterator[tuple[str, Tensor]]:
        """Every tensor (of those whose name is ``wanted``), file by file, as stored; on the CPU.

        Files are memory-mapped: hold on to no more than one tensor and the host needs no more memory
        than that. Raises CheckpointError, naming the file, if it cannot be read.
        """

    @property
    @abstractmethod
    def weight_bytes(self) -> int:
        """Bytes of all tensors as stored (quantized ones in their packed size)."""

    def tensor_names(self) -> list[str]:
        """Names of all tensors, in the order of :meth:`tensors`."""
        return list(self.tensor_shapes())

    @property
    def dtype(self) -> torch.dtype | None:
        """The declared dtype (``dtype`` or ``torch_dtype`` of config.json), or None when none is declared.

        Raises CheckpointError for a value that is no floating-point dtype of torch.
        """
        import torch

        text = self.config.get("text_config") or {}
        for section in (self.config, text):
            value = section.get("dtype") or section.get("torch_dtype")
            if value in (None, "auto"):
                continue
            dtype = getattr(torch, str(value).removeprefix("torch."), None)
            if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
                raise CheckpointError(
                    f"config.json of {self.name} declares the unknown dtype {value!r}; set model.dtype"
                )
            return dtype
        return None

    @property
    def quantization_config(self) -> dict[str, Any] | None:
        """How the weights are quantized (config.json's ``quantization_config``), or None for full precision."""
        text = self.config.get("text_config") or {}
        for section in (self.config, text):
            found = section.get("quantization_config") or section.get("compression_config")
            if found:
                return dict(found)
        return None
