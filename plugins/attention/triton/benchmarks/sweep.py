"""Searches launch parameters: ``python sweep.py [decode] [prefill] [varlen]``, of caches of codes in sweep_codes.py.

Compiles in parallel, then times one after another.
"""

from __future__ import annotations

import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import astuple, replace
from itertools import product
from multiprocessing import get_context

from figures import decode_time, make_case, prefill_time, varlen_time

from pymllm_attention_triton.configs import LaunchConfig

DECODE = list(product((16, 32, 64), (1, 2, 4), (2, 3), (0,), (32, 128)))
PROGRAMS = (2, 4, 8)
PREFILL = [(64, 32, 4, 2, 128), (64, 32, 4, 3, 128), (64, 64, 4, 2), (64, 64, 4, 3), (64, 64, 4, 2, 168),
           (64, 64, 4, 3, 168), (128, 32, 8, 2, 128), (128, 32, 8, 3, 128), (128, 64, 4, 3), (128, 64, 8, 2),
           (128, 64, 8, 3), (128, 64, 8, 2, 128), (128, 64, 8, 3, 128), (128, 128, 8, 2), (128, 128, 8, 3)]  # fmt: skip
HEADS = ((16, 8), (32, 8))
DECODE_CASES = [(1, 600, 28), (4, 600, 16), (8, 600, 16), (16, 600, 8), (32, 600, 8), (64, 600, 4), (128, 600, 4)]
VARLEN_SIZES = (64, 72, 128)
PREFILL_CASES = [[256], [2048], [8192], [1024] * 8]


def decode_configs() -> list[LaunchConfig]:
    return [LaunchConfig(16, *values) for values in DECODE]


def prefill_configs() -> list[LaunchConfig]:
    return [LaunchConfig(*values) for values in PREFILL]


def compile_one(job: tuple[str, tuple[int, int], LaunchConfig]) -> str | None:
    """Run a small problem, which fills Triton's cache."""
    kind, heads, config = job
    try:
        if kind == "decode":
            decode_time(make_case([1], [20], *heads), config=config)
        elif kind == "prefill":
            prefill_time(make_case([20], [20], *heads), 1, config=config)
        else:
            varlen_time(20, 1, 16, heads[0], 1, config=config)
    except Exception as error:
        return f"{job}: {str(error)[:200]}"
    return None


def text(config: LaunchConfig) -> str:
    return ",".join(map(str, astuple(config)))


def show(name: str, results: list[tuple[float, str]], top: int = 5) -> None:
    print(name, "|", " | ".join(f"{time:.1f} us {text}" for time, text in sorted(results)[:top]), flush=True)


def sweep_decode() -> None:
    for heads, (requests, context, layers) in product(HEADS, DECODE_CASES):
        case = make_case([1] * requests, [context] * requests, *heads, layers=layers)
        results = []
        for config, programs in product(decode_configs(), PROGRAMS):
            time = decode_time(case, replace(config, programs=programs))
            results.append((time, text(replace(config, programs=programs))))
        show(f"decode {heads} {requests} x {context}", results, 8)


def sweep_prefill() -> None:
    for heads, queries in product(HEADS, PREFILL_CASES):
        case = make_case(queries, queries, *heads)
        results = [(prefill_time(case, config=config), text(config)) for config in prefill_configs()]
        show(f"prefill {heads} {len(queries)} x {queries[0]}", results)


def sweep_varlen() -> None:
    for size in VARLEN_SIZES:
        results = [(varlen_time(4096, 1, 16, size, config=config), text(config)) for config in prefill_configs()]
        show(f"varlen {size}", results)


def main(kinds: list[str]) -> None:
    configs = {"decode": decode_configs(), "prefill": prefill_configs(), "varlen": prefill_configs()}
    shapes = {"decode": HEADS, "prefill": HEADS, "varlen": [(size, 0) for size in VARLEN_SIZES]}
    jobs = [(kind, shape, config) for kind in kinds for shape in shapes[kind] for config in configs[kind]]
    with ProcessPoolExecutor(14, mp_context=get_context("spawn")) as pool:
        failures = list(filter(None, pool.map(compile_one, jobs)))
    if failures:
        raise SystemExit("\n".join(failures))
    for kind in kinds:
        {"decode": sweep_decode, "prefill": sweep_prefill, "varlen": sweep_varlen}[kind]()


if __name__ == "__main__":
    main(sys.argv[1:] or ["decode", "prefill", "varlen"])
