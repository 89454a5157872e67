"""One batch of equal requests, run by the model's runner alone: no server, no tokenizer, no scheduler.

Every setting (batch size x input length x output length) is warmed up by one whole run of its own. Prompts are
random and new in each run; nothing is shared or cached. The prompts are computed first, in chunks of at most
``engine.max_batch_tokens`` tokens; then all requests decode in lockstep, each step launched as the engine launches
it (before the last one's tokens are read, where the engine overlaps them). A time ends when the host has the
tokens, so every figure includes waiting for the device.

Fields of a summary line (one for each setting), beside those of :mod:`pymllm.bench.results`:

batch_size, input_len, output_len: the setting; output_len counts the token that the prefill brings.
temperature, seed, repeats: as given. device, dtype, quant, attention: what ran; quant is null for full
precision. cuda_graph: decode steps are replays of CUDA graphs. overlap: they overlap. prefill_steps: chunks.

prefill_latency: from launching the first chunk until every first token is there; median of the repeats.
prefill_throughput: prompt tokens over that. median_decode_latency: seconds between the tokens of two steps;
median of a run's steps, then of the repeats. median_decode_throughput: batch_size over that.
total_latency: both stages; median. overall_throughput: prompt and output tokens over that, as SGLang counts.
spread: {prefill_latency, median_decode_latency, total_latency}, each {median, best, worst, values} over
the repeats. decode_steps: distribution of all measured decode steps {count, mean, p50, p90, p95, p99, min, max}.

memory: bytes {weights, kv (of this batch, at its end), kv_pool, step_peak (that the warm-up took beyond)}.
ceilings: {bandwidth, compute, dtype}, measured before (see :mod:`pymllm.bench.ceilings`).
bandwidth_share: bytes that a decode step must read at the mean context (:mod:`pymllm.bench.demand`) over
median_decode_latency, as a share of the bandwidth. compute_share: the same for the operations of the prefill.

With an output_len of 1, every field of decoding is null.

With pictures (``--image``), every prompt holds them, as new ones: image_tokens of its input_len tokens stand for them.
vit_prefill_ms: encoding the pictures of the whole batch, which lie on the device, alone. multimodal_prefill_ms,
multimodal_prefill_throughput: prefill_latency and prefill_throughput, which then include sending and encoding them.
Without pictures these are null; with them compute_share is.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from statistics import median

import numpy as np
import torch

from pymllm.bench.ceilings import Ceilings, synchronize
from pymllm.bench.demand import decode_bytes, kv_token_bytes, prefill_flops
from pymllm.bench.lockstep import Lockstep, check_fits
from pymllm.bench.pictures import Pictures, items
from pymllm.bench.profile import Profiler
from pymllm.bench.stats import Spread, Summary, spread, summarize
from pymllm.bench.workload import unlike_prompts
from pymllm.engine.assemble import Assembled
from pymllm.frontend.generation import PlacedPrompt
from pymllm.memory.device import peak_bytes
from pymllm.sampling import SamplingParams

PROFILED_DECODES = 8
"""Decode steps in a trace; more of them would only be alike."""


@dataclass(frozen=True)
class OneBatchOptions:
    """What to measure; see the module. input_len: none with pictures: the prompt as it is."""

    batch_size: Sequence[int]
    input_len: Sequence[int]
    output_len: Sequence[int]
    temperature: float
    seed: int
    repeats: int


@dataclass(frozen=True)
class Memory:
    """Bytes; see the module."""

    weights: int
    kv: int
    kv_pool: int
    step_peak: int


@dataclass(frozen=True)
class OneBatchResult:
    """What was measured for one setting; see the module."""

    batch_size: int
    input_len: int
    output_len: int
    prefill_latency: float
    prefill_throughput: float
    median_decode_latency: float | None
    median_decode_throughput: float | None
    total_latency: float
    overall_throughput: float
    device: str
    dtype: str
    quant: str | None
    attention: str
    cuda_graph: bool
    overlap: bool
    prefill_steps: int
    memory: Memory
    ceilings: Ceilings
    bandwidth_share: float | None
    compute_share: float | None
    image_tokens: int | None
    vit_prefill_ms: float | None
    multimodal_prefill_ms: float | None
    multimodal_prefill_throughput: float | None
    decode_steps: Summary | None
    spread: dict[str, Spread | None]


@dataclass(frozen=True)
class _Run:
    """Seconds of one run. decodes: of each decode step."""

    prefill: float
    decodes: list[float]

    @property
    def total(self) -> float:
        return self.prefill + sum(self.decodes)


@dataclass(frozen=True)
class _Vision:
    """tokens: of a prompt's pictures. seconds: of encoding those of a batch, median."""

    tokens: int
    seconds: float


def measure_one_batch(
    parts: Assembled,
    ceilings: Ceilings,
    options: OneBatchOptions,
    profiler: Profiler | None = None,
    pictures: Pictures | None = None,
) -> Iterator[OneBatchResult]:
    """One result for each setting, as soon as it is measured. profiler: traces one more run of each. pictures: in every
    prompt.

    Raises ConfigError, before anything runs, for a setting that does not fit; BenchmarkError for a model whose
    logits are not numbers.
    """
    lengths = options.input_len
    if pictures is not None and not lengths:
        lengths = [pictures.natural_length]
    settings = list(product(options.batch_size, lengths, options.output_len))
    for batch_size, input_len, output_len in settings:
        check_fits(parts.info, batch_size, input_len + output_len)
    rng = random.Random(options.seed)
    for batch_size, input_len, output_len in settings:
        new = partial(_batch, parts, rng, options, pictures, batch_size, input_len, output_len)
        peak = peak_bytes(parts.attention.context.device, partial(_run, parts, new()))
        runs = [_run(parts, new()) for _ in range(options.repeats)]
        if profiler is not None:
            _profile(profiler, new(), f"b{batch_size}-in{input_len}-out{output_len}")
        vision = None if pictures is None else _vision(parts, options, pictures, batch_size, input_len)
        yield _result(parts, ceilings, (batch_size, input_len, output_len), peak, runs, vision)


def _batch(
    parts: Assembled,
    rng: random.Random,
    options: OneBatchOptions,
    pictures: Pictures | None,
    batch_size: int,
    input_len: int,
    output_len: int,
) -> Lockstep:
    prompts: Sequence[list[int] | PlacedPrompt]
    if pictures is None:
        prompts = unlike_prompts(rng, batch_size, input_len, parts.info.vocab_size)
    else:
        prompts = _picture_prompts(pictures, rng, batch_size, input_len)
    asked = SamplingParams(temperature=options.temperature, max_tokens=output_len, ignore_eos=True)
    return Lockstep(parts, prompts, output_len, asked.with_defaults({}), seed=options.seed)


def _picture_prompts(pictures: Pictures, rng: random.Random, batch_size: int, length: int) -> list[PlacedPrompt]:
    return [pictures.prompt(length, rng.getrandbits(62)) for _ in range(batch_size)]


@torch.inference_mode()
def _vision(parts: Assembled, options: OneBatchOptions, pictures: Pictures, batch_size: int, length: int) -> _Vision:
    """Encode a batch's pictures alone."""
    device, times = parts.attention.context.device, []
    prompts = _picture_prompts(pictures, random.Random(options.seed), batch_size, length)
    media = items(prompts, device)
    for _ in range(options.repeats + 1):
        synchronize(device)
        start = time.perf_counter()
        parts.model.encode_media(media)
        synchronize(device)
        times.append(time.perf_counter() - start)
    return _Vision(pictures.tokens, median(times[1:]))


def _run(parts: Assembled, batch: Lockstep) -> _Run:
    synchronize(parts.attention.context.device)
    start = time.perf_counter()
    *_, first = batch.prefill()
    moments = [first, *batch.decode()]
    return _Run(first - start, np.diff(moments).tolist())


def _profile(profiler: Profiler, batch: Lockstep, setting: str) -> None:
    with profiler.stage(setting, "prefill"):
        list(batch.prefill())
    with profiler.stage(setting, "decode"):
        list(batch.decode(PROFILED_DECODES))


def _result(
    parts: Assembled,
    ceilings: Ceilings,
    setting: tuple[int, int, int],
    peak: int,
    runs: list[_Run],
    vision: _Vision | None,
) -> OneBatchResult:
    batch_size, input_len, output_len = setting
    info = parts.info
    prefill, total = (spread([run.prefill for run in runs]), spread([run.total for run in runs]))
    decode = spread([median(run.decodes) for run in runs]) if output_len > 1 else None
    share = None
    if decode is not None:  # its steps attend to input_len + 1, ..., input_len + output_len - 1 tokens
        needed = decode_bytes(parts, batch_size, input_len + output_len / 2)
        share = needed / decode.median / ceilings.bandwidth
    chosen = {choice.kind: choice.name for choice in info.choices}
    return OneBatchResult(
        batch_size=batch_size,
        input_len=input_len,
        output_len=output_len,
        prefill_latency=prefill.median,
        prefill_throughput=batch_size * input_len / prefill.median,
        median_decode_latency=decode.median if decode else None,
        median_decode_throughput=batch_size / decode.median if decode else None,
        total_latency=total.median,
        overall_throughput=batch_size * (input_len + output_len) / total.median,
        device=info.device,
        dtype=info.dtype,
        quant=chosen.get("quant"),
        attention=chosen["attention"],
        cuda_graph=parts.graphs,
        overlap=parts.overlap,
        prefill_steps=-(-batch_size * input_len // info.max_batch_tokens),
        memory=Memory(
            weights=info.weight_bytes,
            kv=round(batch_size * (input_len + output_len - 1) * kv_token_bytes(parts)),
            kv_pool=info.pages * info.page_bytes,
            step_peak=peak,
        ),
        ceilings=ceilings,
        bandwidth_share=share,
        compute_share=None
        if vision
        else prefill_flops(parts, batch_size, input_len) / prefill.median / ceilings.compute,
        image_tokens=vision.tokens if vision else None,
        vit_prefill_ms=vision.seconds * 1e3 if vision else None,
        multimodal_prefill_ms=prefill.median * 1e3 if vision else None,
        multimodal_prefill_throughput=batch_size * input_len / prefill.median if vision else None,
        decode_steps=summarize(seconds for run in runs for seconds in run.decodes),
        spread={"prefill_latency": prefill, "median_decode_latency": decode, "total_latency": total},
    )
