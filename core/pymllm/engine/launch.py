"""Starts an engine where the configuration wants it."""

from __future__ import annotations

from pymllm.config import Config
from pymllm.engine.client import EngineClient


def launch(config: Config, *, process: bool, progress: bool = True) -> EngineClient:
    """A started engine; blocks until its model is loaded.

    process: in a process of its own, where ``engine.process`` does not say otherwise; else in a thread.
    progress: draw progress bars while weights are fetched and loaded.
    Raises PymllmError (ConfigError, PluginError, CheckpointError, CapacityError) for what the user can fix.
    """
    wanted = config.engine.process if config.engine.process is not None else process
    if wanted:
        from pymllm.engine.process import ProcessClient

        return ProcessClient(config, progress=progress)
    from pymllm.engine.assemble import assemble
    from pymllm.engine.thread import ThreadClient

    return ThreadClient(lambda: assemble(config, progress=progress))
