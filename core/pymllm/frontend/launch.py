"""Starts everything that a configuration describes, up to a frontend that can be asked."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pymllm.config import Config
from pymllm.engine.messages import EngineInfo
from pymllm.frontend.frontend import Frontend

if TYPE_CHECKING:
    from pymllm.checkpoint import Checkpoint
    from pymllm.frontend.media import MediaPlacer


def launch_frontend(config: Config, *, process: bool, progress: bool = True) -> Frontend:
    """A frontend over a started engine; blocks until the model is loaded. Close it after use.

    process, progress: as for :func:`pymllm.engine.launch.launch`.
    Raises PymllmError for what the user can fix.
    """
    from pymllm.checkpoint import open_checkpoint
    from pymllm.engine.launch import launch
    from pymllm.frontend.tokenizer import eos_token_ids, load_tokenizer

    checkpoint = open_checkpoint(config.model, progress=progress)
    tokenizer = load_tokenizer(checkpoint, config.model)
    client = launch(config, process=process, progress=progress)
    try:
        return Frontend(
            client,
            tokenizer,
            generation_defaults=checkpoint.generation_config,
            eos_token_ids=eos_token_ids(checkpoint, tokenizer),
            model_name=config.server.model_name or checkpoint.name,
            media=media_placer(config, checkpoint, client.info, tokenizer),
        )
    except BaseException:
        client.close()
        raise


def media_placer(config: Config, checkpoint: Checkpoint, info: EngineInfo, tokenizer: Any) -> MediaPlacer | None:
    """For a model that takes images or videos, else None. Raises PymllmError: the plugin's processor cannot be loaded,
    or cannot follow the checkpoint's files, or Pillow is missing."""
    if not info.max_media_tokens:
        return None
    from pymllm.frontend.media import MediaPlacer
    from pymllm.processors import make_processor

    name = next(choice.name for choice in info.choices if choice.kind == "model")
    processor = make_processor(config, checkpoint, name, None if tokenizer is None else _encoder(tokenizer))
    return None if processor is None else MediaPlacer(processor, config.media, info.max_media_tokens)


def _encoder(tokenizer: Any) -> Callable[[str], list[int]]:
    return lambda text: list(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])
