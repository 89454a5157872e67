"""``pymllm warmup``: do ahead of time what a start would otherwise do first, and say what was done.

Weights and tokenizer are fetched, the model is loaded, its worst-case step run, CUDA graphs captured; plugins
build what they would build at first use (``AttentionBackend.warmup``, ``QuantMethod.warmup``); short batches are
prefilled and decoded with each kind of sampling; on a GPU, the kernels of the model's products are tuned, those
that the device's table does not have yet. What is built lies in caches (of checkpoints, Triton, FlashInfer; the
table of kernels beside them), where the next start finds it.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pymllm.cli.common import add_config_arguments, compose_arguments, table

if TYPE_CHECKING:
    from pymllm.config import Config
    from pymllm.engine.assemble import Assembled

log = logging.getLogger(__name__)

SAMPLING: Mapping[str, Mapping[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "sampled": {"temperature": 0.8, "top_p": 0.9, "top_k": 20, "min_p": 0.05},
    "penalties and log-probabilities": {"temperature": 0.8, "repetition_penalty": 1.1, "logprobs": 1},
}
"""Name -> sampling params; together they use every part of the sampler."""

PROMPT_TOKENS, ANSWER_TOKENS = 17, 4
"""Of the short batches."""

BATCH_SIZES = (1, 2, 8)


class Stages:
    """What was done, and the seconds since the last entry."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, str]] = []
        self.started = self._last = time.monotonic()

    def done(self, what: str) -> None:
        """Something has ended; what took time since the last entry was this."""
        now = time.monotonic()
        self.rows.append((f"{now - self._last:8.2f}", what))
        self._last = now


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """[CONFIG] [key=value ...]"""
    add_config_arguments(parser)


def execute(args: argparse.Namespace) -> int:
    """Build everything, then print what was built and how long it took. Raises PymllmError."""
    config = compose_arguments(args)
    from pymllm.log import setup_logging

    setup_logging(config.log.level)
    stages = Stages()
    parts = _load(config, stages)
    _run_steps(parts, stages)
    _tune(parts, stages)
    print(table([*stages.rows, (f"{time.monotonic() - stages.started:8.2f}", "in all")], (" SECONDS", "DONE")))
    return 0


def _load(config: Config, stages: Stages) -> Assembled:
    progress = sys.stderr.isatty()
    from pymllm.checkpoint import open_checkpoint
    from pymllm.engine.assemble import assemble_parts
    from pymllm.frontend.tokenizer import load_tokenizer

    stages.done("libraries imported")
    checkpoint = open_checkpoint(config.model, progress=progress)
    stages.done(f"checkpoint found: {checkpoint.name}")
    tokenizer = load_tokenizer(checkpoint, config.model)
    stages.done("tokenizer loaded" if tokenizer is not None else "no tokenizer: the checkpoint has none")
    return assemble_parts(config, progress=progress, done=stages.done)


def _run_steps(parts: Assembled, stages: Stages) -> None:
    """Prefill and decode short batches, as many of the sizes as fit."""
    from pymllm.bench.lockstep import Lockstep, check_fits
    from pymllm.errors import ConfigError
    from pymllm.sampling import SamplingParams

    for name, params in SAMPLING.items():
        sizes = []
        for size in BATCH_SIZES:
            prompts = [[0] * PROMPT_TOKENS for _ in range(size)]
            try:
                check_fits(parts.info, size, PROMPT_TOKENS + ANSWER_TOKENS)
            except ConfigError:
                continue
            sampling = SamplingParams(**params, max_tokens=ANSWER_TOKENS, ignore_eos=True).with_defaults({})
            batch = Lockstep(parts, prompts, ANSWER_TOKENS, sampling, seed=0)
            list(batch.prefill())
            list(batch.decode())
            sizes.append(str(size))
        stages.done(f"steps run, {name}: batches of {', '.join(sizes)}" if sizes else f"no room for a batch, {name}")


def _tune(parts: Assembled, stages: Stages) -> None:
    """Measure the kernels of the products that the steps so far asked for and the device's table lacks."""
    from pymllm.layers.fused import products_of

    asked = products_of(parts.model)
    if not asked:
        return
    from pymllm.errors import ConfigError
    from pymllm.layers.kernels.table import load_table, table_path
    from pymllm.layers.kernels.tune import ROWS, tune

    context = parts.attention.context
    table = load_table(context.device)
    missing = [item for item in asked if not all(item.key(rows) in table for rows in ROWS)]
    where = table_path(context.device)
    if missing:
        try:
            tune(missing, device=context.device, dtype=context.dtype, rows=ROWS, report=log.info)
        except OSError as error:
            raise ConfigError(f"the table of kernels cannot be written to '{where}': {error.strerror}") from error
    stages.done(f"kernels tuned: {len(missing)} products, {len(asked) - len(missing)} known already, in {where}")
