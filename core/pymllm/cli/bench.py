"""``pymllm bench``: measure offline throughput and latency, or a running server."""

from __future__ import annotations

import argparse
from importlib import import_module

from pymllm.cli.bench_arguments import add_latency, add_serve, add_throughput

MEASURES = {
    "throughput": ("output tokens per second, all requests at once, offline", add_throughput, "bench_offline"),
    "latency": ("time to the first token and per token, offline", add_latency, "bench_offline"),
    "serve": ("a running server under load: latencies, throughput, errors", add_serve, "bench_serve"),
}
"""Name -> its summary, what adds its options, and the module of pymllm.cli whose function of that name runs it."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """throughput, latency and serve, each with its own options."""
    measures = parser.add_subparsers(dest="measure", required=True, metavar="|".join(MEASURES))
    for name, (summary, add, _) in MEASURES.items():
        add(measures.add_parser(name, help=summary, description=f"Measure {summary}.", allow_abbrev=False))


def execute(args: argparse.Namespace) -> int:
    """0, or 1 if requests to a server failed. Raises PymllmError for what the user can fix."""
    module = import_module(f"pymllm.cli.{MEASURES[args.measure][2]}")
    status: int = getattr(module, args.measure)(args)
    return status
