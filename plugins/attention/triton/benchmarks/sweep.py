"""Searches launch parameters: ``python sweep.py``. Compiles in parallel, then times one after another."""

from __future__ import annotations

import sys
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from multiprocessing import get_context

from figures import causal_flop, decode_time, kv_bytes, make_case, prefill_time, varlen_time
from pymllm_attention_triton.configs import LaunchConfig

DECODE = [
    *product((32,), (1, 2), (2, 3, 4)),
    *product((64,), (2, 4), (2, 3, 4)),
    *product((64,), (4,), (1,)),
    *product((128,), (4, 8), (1, 2, 3)),
]
PREFILL = [(64, 64, 4, 2), (64, 64, 4, 3), (64, 128, 4, 2), (128, 64, 4, 2), (128, 64, 4, 3), (128, 64, 8, 2),
           (128, 64, 8, 3), (128, 64, 8, 4), (128, 128, 8, 2), (128, 128, 8, 3)]  # fmt: skip
HEADS = ((16, 8), (32, 8))
DECODE_CASES = [(1, 600, 28), (8, 600, 16), (32, 600, 8), (128, 600, 4), (256, 1024, 2)]
PREFILL_CASES = [[256], [2048], [8192], [1024] * 8]


def decode_configs() -> list[LaunchConfig]:
    return [LaunchConfig(16, keys, warps, stages) for keys, warps, stages in DECODE]


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


def show(name: str, results: list[tuple[float, str]], top: int = 4) -> None:
    print(name, "|", " | ".join(f"{time:.1f} us {text}" for time, text in sorted(results)[:top]), flush=True)


def main() -> None:
    jobs = [("decode", heads, config) for heads in HEADS for config in decode_configs()]
    jobs += [("prefill", heads, config) for heads in HEADS for config in prefill_configs()]
    jobs += [("varlen", (size, 0), config) for size in (64, 72) for config in prefill_configs()]
    with ProcessPoolExecutor(14, mp_context=get_context("spawn")) as pool:
        failures = list(filter(None, pool.map(compile_one, jobs)))
    print(*failures, sep="\n")
    broken = set(failures)
    for heads in HEADS:
        for requests, context, layers in DECODE_CASES:
            case = make_case([1] * requests, [context] * requests, *heads, layers=layers)
            results = []
            for config, programs in product(decode_configs(), (2, 4, 8)):
                time = decode_time(case, config=config, programs=programs)
                text = f"{config.keys},{config.warps},{config.stages},p{programs} {kv_bytes(case) / time / 1e6:.2f}"
                results.append((time, text))
            show(f"decode {heads} {requests} x {context}", results, 6)
        for queries in PREFILL_CASES:
            case = make_case(queries, queries, *heads)
            results = []
            for config in prefill_configs():
                if not any(f"prefill', {heads}, {config}" in line for line in broken):
                    time = prefill_time(case, config=config)
                    rate = causal_flop(queries, queries, heads[0], 128) / time / 1e6
                    results.append((time, f"{config.rows},{config.keys},{config.warps},{config.stages} {rate:.0f}"))
            show(f"prefill {heads} {len(queries)} x {queries[0]}", results)
    for size in (64, 72):
        results = []
        for config in prefill_configs():
            if not any(f"varlen', ({size}, 0), {config}" in line for line in broken):
                time = varlen_time(4096, 1, 16, size, config=config)
                rate = 4.0 * 4096 * 4096 * 16 * size / time / 1e6
                results.append((time, f"{config.rows},{config.keys},{config.warps},{config.stages} {rate:.0f}"))
        show(f"varlen {size}", results)


if __name__ == "__main__":
    sys.exit(main())
