"""A checkpoint as a folder that transformers reads."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pymllm.checkpoint import Checkpoint
from pymllm.errors import CheckpointError, ConfigError


@contextmanager
def transformers_folder(checkpoint: Checkpoint, tokenizer: Any) -> Iterator[Path]:
    """The checkpoint's own folder, or for another kind of file a copy of it while the block runs.

    Raises ConfigError for a checkpoint that is quantized already, or has no weights.
    """
    if checkpoint.quantization_config is not None:
        raise ConfigError(f"{checkpoint.name} is quantized already: give the full-precision checkpoint")
    if not checkpoint.has_weights:
        raise ConfigError(f"{checkpoint.name} holds no weights")
    if checkpoint.path.is_dir():
        yield checkpoint.path
        return
    with TemporaryDirectory(prefix="pymllm-quantize-") as name:
        folder = Path(name)
        _write(checkpoint, tokenizer, folder)
        yield folder


def _write(checkpoint: Checkpoint, tokenizer: Any, folder: Path) -> None:
    from safetensors.torch import save_file

    tensors = {name: tensor.contiguous().clone() for name, tensor in checkpoint.tensors()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    for name, content in (("config", checkpoint.config), ("generation_config", checkpoint.generation_config)):
        (folder / f"{name}.json").write_text(json.dumps(content, indent=2), encoding="utf-8")
    tokenizer.save_pretrained(folder)


def load_model(folder: Path, checkpoint: Checkpoint, *, on_cpu: bool) -> Any:
    """transformers' model, on a GPU in the checkpoint's dtype, on a CPU in float32. Raises CheckpointError."""
    import torch
    import transformers

    architecture = (checkpoint.config.get("architectures") or ["?"])[0]
    model_class = getattr(transformers, architecture, None)
    if model_class is None:
        raise CheckpointError(f"transformers {transformers.__version__} knows no {architecture}")
    dtype = torch.float32 if on_cpu else checkpoint.dtype or torch.bfloat16
    model = model_class.from_pretrained(folder, dtype=dtype)
    return model if on_cpu else model.to("cuda")
