"""Builds a runnable engine from a configuration: choose the plugins, build, load, measure, allocate."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain

import torch

from pymllm.checkpoint import Checkpoint, fill_random, load_weights, open_checkpoint
from pymllm.config import Config, DType, EngineConfig, LoadFormat
from pymllm.engine.choose import Chosen, choose_attention, choose_model, choose_named, choose_quant
from pymllm.engine.engine import Engine, StepRunner
from pymllm.engine.measure import (
    GRAPHS_DO_NOT_FIT,
    cuda_runner,
    encoded_at_a_time,
    measure,
    media_cache_bytes,
    must_fit,
)
from pymllm.engine.media import MediaStore
from pymllm.engine.messages import EngineInfo
from pymllm.engine.runner import Runner
from pymllm.errors import CheckpointError, ConfigError
from pymllm.interfaces.attention import AttentionBackend, AttentionContext
from pymllm.interfaces.cache import CacheContext
from pymllm.interfaces.model import Model
from pymllm.interfaces.quant import Linear, QuantContext, QuantMethod
from pymllm.interfaces.weights import WeightMap
from pymllm.layers import BuildContext, FullPrecision
from pymllm.registry import Registry

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Assembled:
    """Everything that runs a model's steps; what an engine adds is who decides which.

    cache: the chosen policy, not yet built. overlap: steps may be launched before the last one's results are
    read. graphs: decode steps are replays of CUDA graphs. media: of a model that takes images or videos.
    """

    info: EngineInfo
    model: Model
    attention: AttentionBackend
    quant: QuantMethod
    runner: StepRunner
    cache: Chosen
    overlap: bool
    graphs: bool
    media: MediaStore | None = None


def assemble(config: Config, *, progress: bool = True) -> Engine:
    """Build and load everything a configuration names. Raises PymllmError for what the user can fix.

    progress: show a bar while weights are loaded.
    """
    started = time.monotonic()
    parts = assemble_parts(config, progress=progress)
    info = parts.info
    policy = parts.cache.factory(parts.cache.options, CacheContext(info.page_size, info.pages))
    seed = config.engine.seed if config.engine.seed is not None else int.from_bytes(os.urandom(8), "little")
    log.info(
        "%s: %s parameters in %s on %s; KV pool of %d tokens in %s (%.2f GiB); ready in %.1f s",
        info.model, _short(info.parameters), info.dtype, info.device, info.capacity_tokens, info.kv_dtype,
        info.pages * info.page_bytes / 2**30, time.monotonic() - started,
    )  # fmt: skip
    knows = {} if parts.media is None else {"knows_media": parts.media.knows}
    return Engine(info, parts.runner, policy, seed=seed, overlap=parts.overlap, **knows)


def assemble_parts(
    config: Config, *, progress: bool = True, done: Callable[[str], None] = lambda stage: None
) -> Assembled:
    """The same without the engine. done: told of each stage, in a few words, when it has ended."""
    registry = Registry()
    checkpoint = open_checkpoint(config.model)
    device = pick_device(config.engine)
    dtype = pick_dtype(config.model.dtype, checkpoint, device)
    model_choice = choose_model(registry, config.model, checkpoint)
    groups = model_choice.factory.memory_groups(checkpoint.config)
    by_name = {group.name: group for group in groups}
    context = AttentionContext(device, dtype, config.cache.page_size, by_name, config.attention.kv_dtype)
    attention_choice = choose_attention(registry, config.attention, context)
    quant_choice = choose_quant(registry, config.quant, checkpoint)
    cache_choice = choose_named(registry, "cache", config.cache)
    chosen = [c for c in (model_choice, quant_choice, attention_choice, cache_choice) if c is not None]
    for part in chosen:
        log.info("%s: %s (%s)", part.choice.kind, part.choice.name, part.choice.reason)

    max_context = pick_max_context(config.model.max_context, checkpoint)
    attention: AttentionBackend = attention_choice.factory(attention_choice.options, context)
    quant = _quant_method(quant_choice, checkpoint, device, dtype)
    with must_fit("the weights do not fit; use a smaller or quantized model"):
        model = _load_model(config, checkpoint, model_choice, quant, attention, max_context, progress=progress)
    done("plugins chosen, weights loaded")
    choices = [part.choice for part in chosen]
    graphs = _replays(config.engine, attention)
    info = measure(config, checkpoint, model, attention, groups, max_context, choices, graphs=graphs)
    done("worst-case step run, KV pool allocated")
    for built in chain(attention.warmup(), quant.warmup()):
        done(built)
    media = _media_store(config, model, attention, info)
    runner = _runner(model, attention, info, graphs, media)
    if graphs:
        done("CUDA graphs captured")
    overlap = attention.context.device.type != "cpu" and config.engine.overlap is not False
    return Assembled(info, model, attention, quant, runner, cache_choice, overlap, graphs, media)


def _short(count: int) -> str:
    return f"{count / 1e9:.2f} B" if count >= 1e8 else f"{count / 1e6:.2f} M"


def _replays(engine: EngineConfig, attention: AttentionBackend) -> bool:
    """Whether steps are captured in CUDA graphs. Raises ConfigError if they must be and cannot."""
    capturable = attention.capabilities.graph_capture
    if engine.cuda_graphs and not capturable:
        raise ConfigError("engine.cuda_graphs: true needs an attention backend that can be captured; this one cannot")
    return attention.context.device.type != "cpu" and capturable and engine.cuda_graphs is not False


def _media_store(config: Config, model: Model, attention: AttentionBackend, info: EngineInfo) -> MediaStore | None:
    """For a model that takes images or videos."""
    if not model.media_width:
        return None
    device = attention.context.device
    most = encoded_at_a_time(info.max_media_tokens, info.max_batch_tokens, device)
    return MediaStore(model, device, capacity=media_cache_bytes(config, device), most_tokens=most)


def _runner(
    model: Model, attention: AttentionBackend, info: EngineInfo, graphs: bool, media: MediaStore | None
) -> StepRunner:
    """The runner for the device. Raises CapacityError if the graphs do not fit."""
    if attention.context.device.type == "cpu":
        return Runner(model, attention, vocab_size=info.vocab_size, media=media)
    with must_fit(GRAPHS_DO_NOT_FIT):
        runner = cuda_runner(
            model,
            attention,
            vocab_size=info.vocab_size,
            max_running=info.max_running_requests,
            max_context=info.max_request_tokens,
            max_batch_tokens=info.max_batch_tokens,
            graphs=graphs,
            media=media,
        )
        runner.capture()
    return runner


def pick_device(engine: EngineConfig) -> torch.device:
    """``auto`` is CUDA where there is a device. Raises ConfigError for a device that is not there, or that
    cannot do what else the section asks for."""
    name = engine.device
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(name)
    if device.type == "cpu":
        for option in ("cuda_graphs", "overlap"):
            if getattr(engine, option):
                raise ConfigError(
                    f"engine.{option}: true needs a CUDA device, and this engine is on a CPU; leave it out"
                )
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise ConfigError(f"engine.device is '{name}', but PyTorch sees no CUDA device here; see 'pymllm doctor'")
        device = torch.device("cuda", device.index or 0)
        if device.index >= torch.cuda.device_count():
            raise ConfigError(f"engine.device is '{name}', but there are {torch.cuda.device_count()} CUDA devices")
    return device


def pick_dtype(wanted: DType, checkpoint: Checkpoint, device: torch.device) -> torch.dtype:
    """``auto`` is the checkpoint's own dtype where the device computes it fast: a 16-bit float on a GPU,
    bfloat16 on a CPU with instructions for it, float32 on other CPUs."""
    if wanted is not DType.auto:
        dtype: torch.dtype = getattr(torch, wanted.value)
        return dtype
    declared = checkpoint.dtype or torch.bfloat16
    if device.type == "cpu":
        fast = torch.ops.mkldnn._is_mkldnn_bf16_supported() if torch.backends.mkldnn.is_available() else False
        return torch.bfloat16 if fast and declared != torch.float32 else torch.float32
    if declared == torch.float32 or (declared == torch.bfloat16 and not torch.cuda.is_bf16_supported()):
        return torch.float16 if not torch.cuda.is_bf16_supported() else torch.bfloat16
    return declared


def pick_max_context(wanted: int | None, checkpoint: Checkpoint) -> int:
    """The configured context, or the checkpoint's. Raises ConfigError for more than the checkpoint's."""
    declared = checkpoint.text_config.get("max_position_embeddings")
    if wanted is None:
        if declared is None:
            raise CheckpointError(
                f"config.json of {checkpoint.name} has no max_position_embeddings; set model.max_context"
            )
        return int(declared)
    if declared is not None and wanted > declared:
        raise ConfigError(
            f"model.max_context is {wanted}, but {checkpoint.name} was made for {declared} tokens; lower it"
        )
    return wanted


def _quant_method(
    chosen: Chosen | None, checkpoint: Checkpoint, device: torch.device, dtype: torch.dtype
) -> QuantMethod:
    if chosen is None:
        return FullPrecision()
    method: QuantMethod = chosen.factory(chosen.options, QuantContext(device, dtype, checkpoint.quantization_config))
    return method


def _load_model(
    config: Config,
    checkpoint: Checkpoint,
    chosen: Chosen,
    quant: QuantMethod,
    attention: AttentionBackend,
    max_context: int,
    *,
    progress: bool,
) -> Model:
    device, dtype = attention.context.device, attention.context.dtype
    weights = WeightMap()
    context = BuildContext(
        dtype=dtype,
        device=device,
        quant=quant,
        attention=attention,
        weights=weights,
        options=chosen.options,
        max_context=max_context,
    )
    with torch.inference_mode():
        model: Model = chosen.factory(checkpoint.config, context)
        model.eval()
        if config.model.load_format is LoadFormat.random:
            std = float(checkpoint.text_config.get("initializer_range") or 0.02)
            fill_random(weights, device=device, dtype=dtype, std=std)
        else:
            load_weights(checkpoint, weights, progress=progress)
        for module in model.modules():
            if isinstance(module, Linear):
                module.finalize()
        quant.finalize()
    return model
