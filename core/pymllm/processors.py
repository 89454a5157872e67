"""The processor of images and videos that a model's plugin names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from pymllm.compose import auto_section
from pymllm.config import Config
from pymllm.interfaces import MediaProcessor, ProcessorContext
from pymllm.plugin import ModelSpec
from pymllm.registry import Registry

if TYPE_CHECKING:
    from pymllm.checkpoint import Checkpoint


def make_processor(
    config: Config, checkpoint: Checkpoint, model: str, encode: Callable[[str], Sequence[int]] | None = None
) -> MediaProcessor | None:
    """Of the model plugin of that name, for a checkpoint; None if it names none. encode: of the tokenizer.

    Raises PymllmError: the plugin's processor cannot be loaded, or cannot follow the checkpoint's files.
    """
    registry = Registry()
    spec = registry.load("model", model)
    factory = registry.processor(model, spec) if isinstance(spec, ModelSpec) else None
    if factory is None:
        return None
    options = auto_section("model", config.model, spec) if config.model.plugin == "auto" else config.model
    path = checkpoint.path
    folder = path if path.is_dir() else path.parent
    return factory(checkpoint.config, ProcessorContext(folder, options, encode))
