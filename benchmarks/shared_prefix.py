"""Requests that share a long prefix: the radix cache against chunk, which reuses nothing.

    python benchmarks/shared_prefix.py configs/quickstart.yaml

32 requests arrive at once; each is the same 1,000 random tokens and then 20 of its own, and is answered with a
few greedy tokens. The prefix cache is emptied before every run, so the radix policy, too, computes the prefix
once: the others wait for the first to finish it. The two take turns; medians count; the answers are compared.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from pymllm import LLM, SamplingParams
from pymllm.bench.results import append_line, engine_metadata, run_metadata
from pymllm.bench.stats import Spread, spread
from pymllm.bench.workload import LAST_ID, random_ids, unlike_prompts
from pymllm.cli.machine import facts

POLICIES = ("chunk", "radix")


def main() -> None:
    """Compare, print, and keep the figures if asked to."""
    args = arguments()
    rng = random.Random(0)
    with open_llm(args.config, "chunk") as chunk, open_llm(args.config, "radix") as radix:
        prefix = random_ids(rng, args.prefix, min(LAST_ID, chunk.info.vocab_size - 1))
        prompts = unlike_prompts(rng, args.requests, args.prefix + args.tail, chunk.info.vocab_size, prefix)
        engines = {"chunk": chunk, "radix": radix}
        seconds: dict[str, list[float]] = {name: [] for name in POLICIES}
        answers: dict[str, list[list[int]]] = {}
        cached: dict[str, int] = {}
        for round_number in range(args.rounds + 1):
            for name, llm in engines.items():
                elapsed, answers[name], cached[name] = run(llm, prompts, args.new_tokens)
                if round_number:  # the first is the warm-up
                    seconds[name].append(elapsed)
        figures = {name: spread(values) for name, values in seconds.items()}
        equal = sum(a == b for a, b in zip(answers["chunk"], answers["radix"]))
        show(args, figures, cached, equal)
        keep(args, radix, figures, cached, equal)


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", nargs="?", default="configs/quickstart.yaml")
    parser.add_argument("--requests", type=int, default=32)
    parser.add_argument("--prefix", type=int, default=1000, help="tokens that all prompts share")
    parser.add_argument("--tail", type=int, default=20, help="tokens of each prompt's own")
    parser.add_argument("--new-tokens", type=int, default=8, help="tokens of each answer")
    parser.add_argument("--rounds", type=int, default=3, help="measured runs of each, after a warm-up")
    parser.add_argument("--result-filename", type=Path, help="append a JSON line")
    return parser.parse_args()


def open_llm(config: str, policy: str) -> LLM:
    """The configured model with a cache policy, in a process of its own: two pools of OpenMP threads in one
    process would slow each other down."""
    settings = {"cache": policy, "engine.max_total_tokens": 65_536, "engine.process": True, "log.level": "warning"}
    return LLM(config, settings)


def run(llm: LLM, prompts: list[list[int]], new_tokens: int) -> tuple[float, list[list[int]], int]:
    """Seconds until all are answered, the answers, and how many prompt tokens the cache gave."""
    params = SamplingParams(temperature=0.0, max_tokens=new_tokens, ignore_eos=True)
    llm.frontend.client.reset_cache()
    start = time.perf_counter()
    outputs = llm.generate(prompts, params)
    elapsed = time.perf_counter() - start
    return elapsed, [o.outputs[0].token_ids for o in outputs], sum(o.num_cached_tokens for o in outputs)


def show(args: argparse.Namespace, figures: Mapping[str, Spread], cached: Mapping[str, int], equal: int) -> None:
    """The comparison."""
    print(
        f"{args.requests} requests of {args.prefix} shared and {args.tail} own tokens, {args.new_tokens} new ones each"
    )
    for name, times in figures.items():
        print(
            f"  {name:6} {times.median:7.3f} s ({times.best:.3f} to {times.worst:.3f}), "
            f"{cached[name]:,} of {args.requests * (args.prefix + args.tail):,} prompt tokens from the cache"
        )
    ratio = figures["chunk"].median / figures["radix"].median
    print(f"  radix finishes {ratio:.2f} times sooner; {equal} of {args.requests} answers are equal")


def keep(
    args: argparse.Namespace, llm: LLM, figures: Mapping[str, Spread], cached: Mapping[str, int], equal: int
) -> None:
    """Append a line."""
    if args.result_filename is None:
        return
    setting: dict[str, Any] = {
        name: getattr(args, name) for name in ("requests", "prefix", "tail", "new_tokens", "rounds")
    }
    machine = {"cpu": facts()["cpu"]["model"], "threads": torch.get_num_threads()}
    head = {**run_metadata("shared_prefix", None), "machine": machine, "engine": engine_metadata(llm.info)}
    ratio = figures["chunk"].median / figures["radix"].median
    append_line(
        args.result_filename,
        {**head, **setting, "seconds": figures, "cached_tokens": cached, "ratio": ratio, "equal_answers": equal},
    )


if __name__ == "__main__":
    main()
