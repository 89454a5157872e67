"""``pymllm bench plot``: draw what ``--result-filename`` kept."""

from __future__ import annotations

import argparse

from pymllm.cli.bench_offline import say


def plot(args: argparse.Namespace) -> int:
    """Draw the files' results. Raises ConfigError for what the user can fix."""
    from pymllm.bench import plot as drawing

    lines = drawing.read_results(args.files)
    drawing.plot(lines, args.output)
    say(f"{len(lines)} results drawn in {args.output}")
    return 0
