"""Starts everything that a configuration describes, up to a frontend that can be asked."""

from __future__ import annotations

from pymllm.config import Config
from pymllm.frontend.frontend import Frontend


def launch_frontend(config: Config, *, process: bool, progress: bool = True) -> Frontend:
    """A frontend over a started engine; blocks until the model is loaded. Close ``frontend.client`` after use.

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
        )
    except BaseException:
        client.close()
        raise
