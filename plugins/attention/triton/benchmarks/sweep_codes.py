"""Searches launch parameters for caches of codes: ``python sweep_codes.py [decode] [prefill]``, about a minute.

Compiles in parallel, then times one after another. bf16 is there to compare with, with few parameters. TB/s counts the
bytes that a cache of that kind takes; the last column says how many times the tokens of bf16 in the same time.
"""

from __future__ import annotations

import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from itertools import product
from multiprocessing import get_context
from time import perf_counter

import torch
from figures import causal_flop, decode_time, kv_bytes, make_case, prefill_time

from pymllm.interfaces import KVDtype
from pymllm_attention_triton.configs import LaunchConfig

HEADS = (32, 8)
KINDS = (KVDtype.auto, KVDtype.int8, KVDtype.int4)
DECODE_CASES = [(64, 8192, 1), (128, 1024, 4), (256, 1024, 2), (1, 8192, 16), (8, 4096, 4)]
"""Requests, context, layers."""

DECODE_OF_NUMBERS = [(32, 1, 2), (64, 2, 2)]
DECODE_OF_CODES = [(16, 1, 3), (32, 1, 2), (32, 1, 3), (32, 1, 2, 128), (32, 1, 3, 128), (64, 1, 2), (64, 1, 3),
                   (64, 1, 2, 128), (64, 2, 2), (64, 2, 3), (64, 2, 2, 128), (128, 2, 2), (64, 4, 2, 128), (128, 4, 2),
                   (128, 4, 2, 128), (128, 4, 3, 128), (256, 8, 2), (256, 8, 2, 128)]  # fmt: skip
"""Keys, warps, stages, registers."""

PROGRAMS = (8, 16, 24, 48)
PREFILL_CASES = [2048, 8192]
PREFILL_OF_NUMBERS = [(128, 64, 8, 2), (128, 128, 8, 3)]
PREFILL_OF_CODES = [(64, 64, 4, 2), (64, 64, 4, 3), (64, 128, 4, 2), (128, 64, 8, 2), (128, 64, 8, 3), (128, 64, 4, 2),
                    (128, 128, 8, 2), (128, 128, 8, 3), (128, 64, 8, 2, 128), (64, 64, 4, 2, 168)]  # fmt: skip
"""Rows, keys, warps, stages, registers."""


def configs(part: str, kind: KVDtype) -> list[LaunchConfig]:
    """The launch parameters to try."""
    numbers = kind == KVDtype.auto
    if part == "decode":
        if numbers:
            return [LaunchConfig(16, *values) for values in DECODE_OF_NUMBERS]
        return [LaunchConfig(8, *values) for values in DECODE_OF_CODES]
    return [LaunchConfig(*values) for values in (PREFILL_OF_NUMBERS if numbers else PREFILL_OF_CODES)]


def compile_one(job: tuple[str, KVDtype, LaunchConfig]) -> str | None:
    """Run a small problem, which fills Triton's cache -> what went wrong."""
    part, kind, config = job
    try:
        if part == "decode":
            decode_time(make_case([1], [20], *HEADS, kind=kind), config, 1, 0)
        else:
            prefill_time(make_case([20], [20], *HEADS, kind=kind), 1, config)
    except Exception as error:
        return f"{part} {kind.value} {text(config)}: {str(error)[:200]}"
    return None


def text(config: LaunchConfig) -> str:
    """Parameters, compactly."""
    short = f"rows {config.rows}, keys {config.keys}, warps {config.warps}, stages {config.stages}"
    return short + (f", registers {config.registers}" if config.registers else "")


def sweep_decode(working: set[tuple[str, KVDtype, LaunchConfig]]) -> None:
    """Time decode: a line for each of the fastest parameters."""
    for requests, context, layers in DECODE_CASES:
        plain = 0.0
        for kind in KINDS:
            case = make_case([1] * requests, [context] * requests, *HEADS, layers=layers, kind=kind)
            results = []
            for config, programs in product(configs("decode", kind), PROGRAMS):
                if ("decode", kind, config) in working:
                    time = decode_time(case, replace(config, programs=programs), 5, 0.01)
                    results.append((time, f"{text(config)}, programs {programs}"))
            results.sort()
            plain = plain or results[0][0]
            for time, name in results[: 1 if kind == KVDtype.auto else 4]:
                rate = kv_bytes(case) / time / 1e6
                line = f"decode {requests} x {context} {kind.value}: {time:7.1f} us {rate:.2f} TB/s"
                print(f"{line} {plain / time:.2f} x | {name}", flush=True)
            del case
            torch.cuda.empty_cache()


def sweep_prefill(working: set[tuple[str, KVDtype, LaunchConfig]]) -> None:
    """Time prefill: a line for each of the fastest parameters."""
    for tokens, kind in product(PREFILL_CASES, KINDS):
        case = make_case([tokens], [tokens], *HEADS, kind=kind)
        tried = [config for config in configs("prefill", kind) if ("prefill", kind, config) in working]
        results = sorted((prefill_time(case, 2, config), text(config)) for config in tried)
        for time, name in results[: 1 if kind == KVDtype.auto else 3]:
            rate = causal_flop([tokens], [tokens], HEADS[0], 128) / time / 1e6
            print(f"prefill 1 x {tokens} {kind.value}: {time:7.1f} us {rate:.0f} TFLOP/s | {name}", flush=True)


def main(parts: list[str]) -> None:
    """Compile, then time."""
    jobs = [(part, kind, config) for part in parts for kind in KINDS for config in configs(part, kind)]
    started = perf_counter()
    with ProcessPoolExecutor(14, mp_context=get_context("spawn")) as pool:
        failures = list(pool.map(compile_one, jobs))
    print(*filter(None, failures), f"compiled in {perf_counter() - started:.0f} s", sep="\n", flush=True)
    working = {job for job, failure in zip(jobs, failures) if failure is None}
    if "decode" in parts:
        sweep_decode(working)
    if "prefill" in parts:
        sweep_prefill(working)


if __name__ == "__main__":
    main(sys.argv[1:] or ["decode", "prefill"])
