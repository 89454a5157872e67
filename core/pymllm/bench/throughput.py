"""Offline throughput: all requests at once, output tokens over the time until the last one is answered.

The protocol that nano-vllm and mini-sglang publish: random prompts and answer lengths
(:func:`pymllm.bench.workload.offline_workload`), end tokens ignored, wall clock around ``LLM.generate``. A
short warm-up comes first; the prefix cache is emptied before every repeat, since each asks the same.

Fields of the summary line, beside those of :mod:`pymllm.bench.results`:

num_prompts, input_len, output_len ({least, most}), seed, temperature: the workload as asked for.
input_tokens, output_tokens: of one repeat. output_tok_s, total_tok_s (prompt tokens too), requests_s:
{median, best, worst, values} over the repeats. elapsed_s: the same. cached_tokens: prompt tokens that came
from the prefix cache, per repeat. preemptions: per repeat.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from pymllm.bench.results import BenchmarkError
from pymllm.bench.stats import Spread, spread
from pymllm.bench.workload import Lengths, Work, offline_workload
from pymllm.llm import LLM
from pymllm.outputs import RequestOutput
from pymllm.sampling import SamplingParams

WARM_UP_PROMPTS, WARM_UP_TOKENS = 8, 16


@dataclass(frozen=True)
class ThroughputOptions:
    """What to measure; see the module."""

    num_prompts: int
    input_len: Lengths
    output_len: Lengths
    seed: int
    temperature: float
    repeats: int


@dataclass(frozen=True)
class ThroughputResult:
    """What was measured; see the module."""

    input_tokens: int
    output_tokens: int
    output_tok_s: Spread
    total_tok_s: Spread
    requests_s: Spread
    elapsed_s: Spread
    cached_tokens: list[int]
    preemptions: list[int]


def measure_throughput(
    llm: LLM, options: ThroughputOptions, *, progress: bool = False, say: Callable[[str], None] = lambda line: None
) -> ThroughputResult:
    """Run the benchmark. progress: a bar for each repeat. say: gets one line for each repeat.

    Raises RequestError before anything runs if a request does not fit, BenchmarkError if one fails.
    """
    work = offline_workload(
        options.num_prompts, options.input_len, options.output_len, options.seed, llm.info.vocab_size
    )
    warm_up = [Work(one.prompt, min(WARM_UP_TOKENS, one.max_tokens)) for one in work[:WARM_UP_PROMPTS]]
    _run(llm, warm_up, options.temperature, progress=False)
    output_tokens = sum(one.max_tokens for one in work)
    seconds, cached, preemptions = [], [], []
    for repeat in range(options.repeats):
        before = llm.frontend.client.stats().total_preemptions
        elapsed, outputs = _run(llm, work, options.temperature, progress=progress)
        seconds.append(elapsed)
        cached.append(sum(output.num_cached_tokens for output in outputs))
        preemptions.append(llm.frontend.client.stats().total_preemptions - before)
        say(f"repeat {repeat + 1} of {options.repeats}: {output_tokens / elapsed:,.1f} output tok/s, {elapsed:.2f} s")
    return _result(work, seconds, cached, preemptions)


def _run(llm: LLM, work: list[Work], temperature: float, *, progress: bool) -> tuple[float, list[RequestOutput]]:
    """Seconds, and the answers, each of which was checked to be complete."""
    params = [SamplingParams(temperature=temperature, max_tokens=one.max_tokens, ignore_eos=True) for one in work]
    llm.frontend.client.reset_cache()
    start = time.perf_counter()
    outputs = llm.generate([one.prompt for one in work], params, progress=progress)
    elapsed = time.perf_counter() - start
    for index, (one, output) in enumerate(zip(work, outputs)):
        answer = output.outputs[0]
        if len(answer.token_ids) != one.max_tokens:
            cause = answer.error or f"finish reason {answer.finish_reason}"
            raise BenchmarkError(
                f"request {index} ended after {len(answer.token_ids)} of {one.max_tokens} tokens ({cause}), "
                "so the run was not measured; see the log"
            )
    return elapsed, outputs


def _result(work: list[Work], seconds: list[float], cached: list[int], preemptions: list[int]) -> ThroughputResult:
    input_tokens = sum(len(one.prompt) for one in work)
    output_tokens = sum(one.max_tokens for one in work)

    def rate(amount: int) -> Spread:
        return spread([amount / elapsed for elapsed in seconds], more_is_better=True)

    return ThroughputResult(
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        output_tok_s=rate(output_tokens),
        total_tok_s=rate(input_tokens + output_tokens),
        requests_s=rate(len(work)),
        elapsed_s=spread(seconds),
        cached_tokens=cached,
        preemptions=preemptions,
    )
