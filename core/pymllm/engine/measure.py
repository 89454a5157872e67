"""Measures what a loaded model takes, divides the memory, and allocates the KV pool."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from pymllm.checkpoint import Checkpoint
from pymllm.config import Config
from pymllm.engine.messages import EngineInfo, PluginChoice
from pymllm.engine.runner import Runner
from pymllm.engine.warmup import worst_case_step
from pymllm.errors import CapacityError
from pymllm.interfaces.attention import AttentionBackend, KVGroup
from pymllm.interfaces.model import Model
from pymllm.memory.budget import Budget, kv_pages
from pymllm.memory.device import available_bytes, is_out_of_memory, peak_bytes, total_bytes

log = logging.getLogger(__name__)

LEAST_TOKENS = 512
"""A pool that memory limits to fewer tokens than this (or than the context) is refused."""


def measure(
    config: Config,
    checkpoint: Checkpoint,
    model: Model,
    attention: AttentionBackend,
    groups: Sequence[KVGroup],
    max_context: int,
    choices: list[PluginChoice],
) -> EngineInfo:
    """Run the worst-case step, divide the memory, and allocate the KV pool. Raises CapacityError."""
    engine, device = config.engine, attention.context.device
    page_size = attention.context.page_size
    max_batch = engine.max_batch_tokens or default_batch_tokens(device)
    vocab = int(checkpoint.config["vocab_size"])
    weights = _unique_bytes(model)
    page_bytes = sum(attention.page_bytes(group) for group in groups)
    peak = _step_peak(Runner(model, attention, vocab_size=vocab), attention, config, max_batch, max_context)
    for group in groups:
        attention.allocate(group, 1)
    if device.type == "cuda":
        torch.cuda.empty_cache()
    fraction = engine.memory_fraction or (0.5 if device.type == "cpu" else 0.9)
    pages = kv_pages(
        Budget(total_bytes(device), available_bytes(device), weights, peak, fraction),
        page_bytes=page_bytes,
        page_size=page_size,
        max_total_tokens=engine.max_total_tokens,
        useful_tokens=engine.max_running_requests * max_context,
        least=max_context if config.model.max_context else min(max_context, LEAST_TOKENS),
    )
    with must_fit("the KV pool does not fit; lower engine.memory_fraction"):
        for group in groups:
            attention.allocate(group, pages + 1)
    capacity = pages * page_size
    if capacity < max_context:
        log.warning(
            "the KV pool holds %d of the context's %d tokens: longer requests are refused", capacity, max_context
        )
    return EngineInfo(
        model=checkpoint.name,
        architecture=str((checkpoint.config.get("architectures") or ["?"])[0]),
        dtype=str(attention.context.dtype).removeprefix("torch."),
        device=_device_name(device),
        vocab_size=vocab,
        max_context=max_context,
        max_request_tokens=min(max_context, capacity),
        capacity_tokens=capacity,
        page_size=page_size,
        pages=pages,
        page_bytes=page_bytes,
        weight_bytes=weights,
        step_peak_bytes=peak,
        max_batch_tokens=max_batch,
        max_running_requests=engine.max_running_requests,
        parameters=sum(p.numel() for p in model.parameters()),
        choices=choices,
    )


def default_batch_tokens(device: torch.device) -> int:
    """The budget of a step where the configuration names none: what keeps the device busy and a decode's wait
    for a prefill chunk short."""
    if device.type == "cpu":
        return 512
    return 8192 if total_bytes(device) >= 40 * 2**30 else 2048


@contextmanager
def must_fit(message: str) -> Iterator[None]:
    """Turns running out of memory inside into a CapacityError that says ``message``."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        detail = (str(error).splitlines() or [type(error).__name__])[0]
        raise CapacityError(f"{message} ({detail})") from error


def _step_peak(
    runner: Runner, attention: AttentionBackend, config: Config, max_batch_tokens: int, max_context: int
) -> int:
    """Bytes that a worst-case step takes at its peak."""

    def step() -> None:
        worst_case_step(
            runner,
            attention,
            max_batch_tokens=max_batch_tokens,
            max_running=config.engine.max_running_requests,
            max_context=max_context,
        )

    with must_fit(f"a step of {max_batch_tokens} tokens does not fit; lower engine.max_batch_tokens"):
        return peak_bytes(attention.context.device, step)


def _unique_bytes(model: Model) -> int:
    """Bytes of parameters and buffers, tied ones once."""
    tensors = {t.data_ptr(): t.numel() * t.element_size() for t in (*model.parameters(), *model.buffers())}
    return sum(tensors.values())


def _device_name(device: torch.device) -> str:
    return f"{device} ({torch.cuda.get_device_name(device)})" if device.type == "cuda" else "cpu"
