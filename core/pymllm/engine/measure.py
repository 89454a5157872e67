"""Measures what a loaded model takes, divides the memory, and allocates the KV pool."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from pymllm.checkpoint import Checkpoint
from pymllm.config import Config, KVDtype
from pymllm.engine.messages import EngineInfo, PluginChoice
from pymllm.engine.runner import Runner
from pymllm.engine.warmup import worst_case_step
from pymllm.errors import CapacityError
from pymllm.interfaces.attention import AttentionBackend, AttentionContext, KVGroup
from pymllm.interfaces.model import Model
from pymllm.memory.budget import Budget, kv_pages
from pymllm.memory.device import available_bytes, is_out_of_memory, peak_bytes, total_bytes
from pymllm.processors import make_processor

if TYPE_CHECKING:
    from pymllm.engine.cuda.runner import CudaRunner

log = logging.getLogger(__name__)

GRAPHS_DO_NOT_FIT = "the CUDA graphs do not fit; lower engine.memory_fraction or engine.max_running_requests"

LARGE = 40 * 2**30
"""Bytes of a device from which on defaults are generous."""

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
    *,
    graphs: bool,
) -> EngineInfo:
    """Run the worst-case step, capture a few graphs if there will be any, divide the memory, and allocate the KV pool.
    Raises CapacityError."""
    engine, device = config.engine, attention.context.device
    page_size = attention.context.page_size
    max_batch = engine.max_batch_tokens or default_batch_tokens(device)
    vocab = int(checkpoint.text_config["vocab_size"])
    weights = _unique_bytes(model)
    page_bytes = sum(attention.page_bytes(group) for group in groups)
    peak = _step_peak(Runner(model, attention, vocab_size=vocab), attention, config, max_batch, max_context)
    for group in groups:
        attention.allocate(group, 1)
    if device.type == "cuda":
        torch.cuda.empty_cache()
    media_tokens, media_bytes = 0, 0
    if model.media_width:
        media_tokens = _media_limit(config, checkpoint, choices, device, max_context)
        encoded = encoded_at_a_time(media_tokens, max_batch, device)
        media_bytes = _encode_peak(model, device, encoded) + media_cache_bytes(config, device)
    sizes = {"max_running": engine.max_running_requests, "max_context": max_context, "max_batch_tokens": max_batch}
    foreseen = _foreseen_graphs(model, attention, vocab_size=vocab, **sizes) if graphs else 0
    fraction = engine.memory_fraction or (0.5 if device.type == "cpu" else 0.9)
    pages = kv_pages(
        Budget(total_bytes(device), available_bytes(device), weights, peak + media_bytes, fraction, foreseen),
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
        dtype=_name(attention.context.dtype),
        kv_dtype=_kv_name(attention.context),
        device=_device_name(device),
        vocab_size=vocab,
        max_context=max_context,
        max_request_tokens=min(max_context, capacity),
        capacity_tokens=capacity,
        page_size=page_size,
        pages=pages,
        page_bytes=page_bytes,
        weight_bytes=weights,
        step_peak_bytes=peak + media_bytes,
        graph_bytes=foreseen,
        max_media_tokens=media_tokens,
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
    return 8192 if _is_large(device) else 2048


def _media_limit(
    config: Config, checkpoint: Checkpoint, choices: list[PluginChoice], device: torch.device, max_context: int
) -> int:
    """Most feature rows of an image or video, no more than the model's processor makes."""
    default = 16384 if _is_large(device) else 4096 if device.type == "cuda" else 1024
    processor = make_processor(config, checkpoint, next(choice.name for choice in choices if choice.kind == "model"))
    most = min(config.media.max_tokens or default, max_context - 1)
    return most if processor is None else min(most, processor.max_tokens)


def encoded_at_a_time(media_tokens: int, max_batch_tokens: int, device: torch.device) -> int:
    """Feature rows that are encoded at a time, unless one medium has more. media_tokens: most of one."""
    return media_tokens if device.type == "cpu" else max(media_tokens, max_batch_tokens)


def media_cache_bytes(config: Config, device: torch.device) -> int:
    """What features that may be asked for again may take."""
    default = 2**30 if _is_large(device) else 2**27
    return default if config.media.cache_bytes is None else config.media.cache_bytes


def _is_large(device: torch.device) -> bool:
    return device.type != "cpu" and total_bytes(device) >= LARGE


def _encode_peak(model: Model, device: torch.device, tokens: int) -> int:
    """Bytes that encoding the largest medium takes at its peak."""

    @torch.inference_mode()
    def encode() -> None:
        model.encode_media([model.example_media(tokens)])

    with must_fit(f"encoding an image of {tokens} tokens does not fit; lower media.max_tokens"):
        return peak_bytes(device, encode)


def _foreseen_graphs(model: Model, attention: AttentionBackend, **sizes: int) -> int:
    """Bytes that CUDA graphs for these sizes will take."""
    with must_fit(GRAPHS_DO_NOT_FIT):
        return cuda_runner(model, attention, graphs=True, **sizes).foresee()


def cuda_runner(model: Model, attention: AttentionBackend, **sizes: Any) -> CudaRunner:
    """The runner of a CUDA device; sizes: as :class:`pymllm.engine.cuda.runner.CudaRunner` takes them."""
    from pymllm.engine.cuda.runner import CudaRunner  # needs Triton, which a CPU does without

    return CudaRunner(model, attention, **sizes)


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


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _kv_name(context: AttentionContext) -> str:
    """How the cache is kept, in the words of the configuration, but for auto and bf16."""
    plain = context.kv_dtype in (KVDtype.auto, KVDtype.bf16)
    return _name(context.cache_dtype) if plain else context.kv_dtype.value


def _device_name(device: torch.device) -> str:
    return f"{device} ({torch.cuda.get_device_name(device)})" if device.type == "cuda" else "cpu"
