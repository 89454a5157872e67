"""``pymllm bench trace``: how busy the GPU was in a Chrome trace, its longest gaps and its largest kernels."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from pymllm.cli.common import table
from pymllm.errors import ConfigError

if TYPE_CHECKING:
    from pymllm.bench.gpu_use import GpuUse, NamedTime

WIDTH = 72
"""Characters of a name that are shown; names of kernels may have hundreds."""

SHOWN_GAPS, SHOWN_CAUSES = 5, 3


def trace(args: argparse.Namespace) -> int:
    """Print what a trace says. Raises ConfigError for what is no trace, or holds no work of a GPU."""
    import msgspec

    from pymllm.bench.gpu_use import gpu_use
    from pymllm.bench.trace_file import read_trace

    found = gpu_use(read_trace(args.file), args.top)
    if not found:
        raise ConfigError(f"'{args.file}' holds no work of a GPU: it was recorded on a CPU, or while nothing ran")
    if args.json:
        print(msgspec.json.encode({"file": str(args.file), "gpus": found}).decode())
    else:
        print("\n\n".join(map(_text, found)))
    return 0


def busy_line(use: GpuUse) -> str:
    """The result in a line."""
    steps = f", {use.steps} steps" if use.steps else ""
    return f"GPU {use.device} busy {100 * use.busy_share:.1f} % of {use.window_us / 1e3:,.2f} ms{steps}"


def _text(use: GpuUse) -> str:
    work = f"{use.kernels:,} kernels, {use.copies:,} copies and fills in {use.streams} streams"
    launches = [f"{count:,} {name}" for name, count in sorted(use.launches.items(), key=lambda item: -item[1])]
    idle = [(f"from {one.at_least_us:g} us", f"{one.count:,}", *_time(one.total_us, use)) for one in use.idle]
    host = [(_short(one.name), *_time(one.total_us, use)) for one in use.host_while_idle]
    top = [
        (_short(one.name), f"{one.count:,}", _ms(one.total_us), f"{one.mean_us:,.1f}", f"{100 * one.share:.1f} %")
        for one in use.top
    ]
    parts = [
        f"{busy_line(use)}: {work}\nlaunches by the host: {', '.join(launches) or 'none recorded'}",
        table(idle, ("IDLE", "GAPS", "ms", "OF ALL")),
        table(host, ("HOST WHILE THE GPU WAS IDLE", "ms", "OF ALL")),
        "\n".join(["LONGEST GAPS", *_gap_lines(use)]),
        table(top, ("KERNEL", "RUNS", "ms", "MEAN us", "OF WORK")),
    ]
    return "\n\n".join(parts)


def _gap_lines(use: GpuUse) -> list[str]:
    lines = []
    for gap in use.gaps[:SHOWN_GAPS]:
        lines.append(f"{gap.length_us:,.1f} us at {_ms(gap.start_us)} ms, after {_short(gap.after)}")
        lines.append(f"  before {_short(gap.before)}; host: {_causes(gap.host)}")
    return lines or ["none"]


def _causes(host: list[NamedTime]) -> str:
    return ", ".join(f"{_short(one.name)} {one.total_us:,.1f} us" for one in host[:SHOWN_CAUSES])


def _time(time_us: float, use: GpuUse) -> tuple[str, str]:
    """Milliseconds, and the share of the window."""
    return _ms(time_us), f"{100 * time_us / use.window_us:.1f} %" if use.window_us else "-"


def _ms(time_us: float) -> str:
    return f"{time_us / 1e3:,.2f}"


def _short(name: str) -> str:
    return name if len(name) <= WIDTH else name[: WIDTH - 3] + "..."
