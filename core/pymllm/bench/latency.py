"""Offline latency: a batch of equal requests, from handing it to the offline API to each of its tokens.

Every setting (batch size x input length x output length) is warmed up by itself. Each run has new random
prompts and an empty prefix cache, unless a shared prefix is asked for: then all prompts start with the same
tokens, which the warm-up leaves in the cache.

Fields of a summary line (one for each setting), beside those of :mod:`pymllm.bench.results`:

batch_size, input_len, output_len, shared_prefix, seed, temperature: the setting.
ttft_s: time to the first token, from the start of the batch, median over its requests. tpot_s: time per
output token after the first, (last - first) / (output_len - 1), median over the requests; null for one token.
e2e_s: until the whole batch is answered. output_tok_s: batch_size x output_len / e2e_s.
Each is {median, best, worst, values} over the repeats. cached_tokens: prompt tokens that came from the prefix
cache, per repeat.
"""

from __future__ import annotations

import queue
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import product

import numpy as np

from pymllm.bench.results import BenchmarkError
from pymllm.bench.stats import Spread, spread
from pymllm.bench.workload import LAST_ID, random_ids, unlike_prompts
from pymllm.errors import ConfigError
from pymllm.frontend.generation import Delta
from pymllm.llm import LLM
from pymllm.sampling import SamplingParams

WARM_UPS = 1
"""Unmeasured runs of each setting."""


@dataclass(frozen=True)
class LatencyOptions:
    """What to measure; see the module."""

    batch_size: Sequence[int]
    input_len: Sequence[int]
    output_len: Sequence[int]
    shared_prefix: int
    seed: int
    temperature: float
    repeats: int


@dataclass(frozen=True)
class LatencyResult:
    """What was measured for one setting; see the module."""

    batch_size: int
    input_len: int
    output_len: int
    ttft_s: Spread
    tpot_s: Spread | None
    e2e_s: Spread
    output_tok_s: Spread
    cached_tokens: list[int]


@dataclass
class _Times:
    """One request of a run. first, last: seconds from the start of the batch."""

    first: float | None = None
    last: float = 0.0
    tokens: int = 0
    cached: int = 0


@dataclass
class _Run:
    """One batch, answered."""

    seconds: float
    requests: list[_Times] = field(default_factory=list)


def measure_latency(llm: LLM, options: LatencyOptions) -> Iterator[LatencyResult]:
    """One result for each setting, as soon as it is measured.

    Raises ConfigError for a shared prefix that leaves no room, RequestError for a setting that does not fit,
    BenchmarkError if a request fails.
    """
    if options.shared_prefix >= min(options.input_len):
        raise ConfigError(f"--shared-prefix {options.shared_prefix} must be below every --input-len")
    rng = random.Random(options.seed)
    prefix = random_ids(rng, options.shared_prefix, min(LAST_ID, llm.info.vocab_size - 1))
    for batch_size, input_len, output_len in product(options.batch_size, options.input_len, options.output_len):
        params = SamplingParams(temperature=options.temperature, max_tokens=output_len, ignore_eos=True)
        runs = []
        for _ in range(WARM_UPS + options.repeats):
            if not prefix:
                llm.frontend.client.reset_cache()
            prompts = unlike_prompts(rng, batch_size, input_len, llm.info.vocab_size, prefix)
            runs.append(_run(llm, prompts, params))
        yield _result(batch_size, input_len, output_len, runs[WARM_UPS:])


def _run(llm: LLM, prompts: list[list[int]], params: SamplingParams) -> _Run:
    events: queue.SimpleQueue[tuple[int, float, Delta]] = queue.SimpleQueue()
    times = [_Times() for _ in prompts]
    generations = []
    start = time.perf_counter()
    try:
        for index, ids in enumerate(prompts):
            generations.append(llm.frontend.start(ids, params, partial(_note, events, index)))
        open_requests = len(prompts)
        while open_requests:
            index, moment, delta = events.get()
            open_requests -= delta.finish_reason is not None
            _take(times[index], moment - start, delta)
    except BaseException:
        for generation in generations:
            generation.abort()
        raise
    if any(one.tokens != params.max_tokens for one in times):
        raise BenchmarkError("a request ended before its last token, so the run was not measured; see the log")
    return _Run(max(one.last for one in times), times)


def _note(events: queue.SimpleQueue[tuple[int, float, Delta]], index: int, delta: Delta) -> None:
    """The sink of a request: when a delta came, on the engine's side of the queue."""
    events.put((index, time.perf_counter(), delta))


def _take(times: _Times, moment: float, delta: Delta) -> None:
    if delta.error is not None:
        raise BenchmarkError(f"a request failed, so the run was not measured: {delta.error}")
    if delta.token_ids and times.first is None:
        times.first, times.cached = moment, delta.cached_tokens
    times.tokens += len(delta.token_ids)
    times.last = moment


def _result(batch_size: int, input_len: int, output_len: int, runs: list[_Run]) -> LatencyResult:
    def median(values: list[float]) -> float:
        return float(np.median(values))

    firsts = [median([one.first or 0.0 for one in run.requests]) for run in runs]
    seconds = [run.seconds for run in runs]
    tpot = None
    if output_len > 1:
        each = [[(one.last - (one.first or 0.0)) / (output_len - 1) for one in run.requests] for run in runs]
        tpot = spread([median(values) for values in each])
    return LatencyResult(
        batch_size=batch_size,
        input_len=input_len,
        output_len=output_len,
        ttft_s=spread(firsts),
        tpot_s=tpot,
        e2e_s=spread(seconds),
        output_tok_s=spread([batch_size * output_len / s for s in seconds], more_is_better=True),
        cached_tokens=[sum(one.cached for one in run.requests) for run in runs],
    )
