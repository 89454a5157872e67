"""``pymllm bench``: measure a model offline or a running server, and draw the results."""

from __future__ import annotations

import argparse
from importlib import import_module

from pymllm.cli.bench_arguments import add_latency, add_one_batch, add_plot, add_serve, add_throughput, add_trace

MEASURES = {
    "one-batch": ("the model alone, one batch at a time: prefill and decode", add_one_batch, "bench_one_batch"),
    "throughput": ("output tokens per second, all requests at once, offline", add_throughput, "bench_offline"),
    "latency": ("time to the first token and per token, offline", add_latency, "bench_offline"),
    "serve": ("a running server under load: latencies, throughput, errors", add_serve, "bench_serve"),
    "trace": ("how busy the GPU was in a trace, and what it waited for", add_trace, "bench_trace"),
    "plot": ("draw result files", add_plot, "bench_plot"),
}
"""Name -> its summary, what adds its options, and the module of pymllm.cli whose function of that name (- as _)
runs it."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """One subcommand for each of MEASURES, with its own options."""
    measures = parser.add_subparsers(dest="measure", required=True, metavar="|".join(MEASURES))
    for name, (summary, add, _) in MEASURES.items():
        text = f"{summary[0].upper()}{summary[1:]}."
        add(measures.add_parser(name, help=summary, description=text, allow_abbrev=False))


def execute(args: argparse.Namespace) -> int:
    """0, or 1 if requests to a server failed. Raises PymllmError for what the user can fix."""
    module = import_module(f"pymllm.cli.{MEASURES[args.measure][2]}")
    status: int = getattr(module, args.measure.replace("-", "_"))(args)
    return status
