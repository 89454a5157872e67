"""Draws result files: one row of diagrams for each benchmark in them, one line or bar for each run and setting.

Points are medians and bars reach from the best to the worst repeat, or from p50 to p99 where a title says so. Of
equal lines (the same run name and setting) the last one counts. Needs matplotlib: ``pip install 'pymllm[plot]'``.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from pymllm.bench.panels import KINDS, Kind, Line, Panel
from pymllm.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH, HEIGHT = 4.8, 3.8
"""Inches of a diagram."""

FORMATS = (".png", ".svg", ".pdf")


def read_results(paths: Sequence[Path]) -> list[dict[str, Any]]:
    """The lines of result files that can be drawn. Raises ConfigError that names the file and line."""
    lines = []
    for path in paths:
        try:
            texts = path.read_bytes().splitlines()
        except OSError as error:
            raise ConfigError(f"'{path}' cannot be read: {error.strerror}") from error
        for number, text in enumerate(texts, 1):
            if text.strip():
                lines.append(_line(text, f"'{path}', line {number}"))
    if not lines:
        raise ConfigError(f"there is no result in {', '.join(map(str, paths))}")
    return lines


def plot(lines: Sequence[Line], target: Path) -> None:
    """Draw results into a .png, .svg or .pdf file. Raises ConfigError, also when matplotlib is not installed."""
    if target.suffix not in FORMATS:
        raise ConfigError(f"'{target}' is no picture: its name must end in {', '.join(FORMATS)}")
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError("drawing needs matplotlib, which is not installed: pip install 'pymllm[plot]'") from error
    kinds = [name for name in KINDS if any(line["benchmark"] == name for line in lines)]
    columns = max(len(KINDS[name].panels) for name in kinds)
    figure = Figure(figsize=(WIDTH * columns, HEIGHT * len(kinds)), layout="constrained")
    grid = figure.subplots(len(kinds), columns, squeeze=False)
    for row, name in zip(grid, kinds):
        mine = [line for line in lines if line["benchmark"] == name]
        for axes, panel in zip(row, KINDS[name].panels):
            _draw(axes, panel, _series(mine, KINDS[name], panel))
        for axes in row[len(KINDS[name].panels) :]:
            axes.remove()
    try:
        figure.savefig(target, dpi=120)
    except OSError as error:
        raise ConfigError(f"'{target}' cannot be written: {error.strerror}") from error


def _line(text: bytes, where: str) -> dict[str, Any]:
    try:
        line = msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise ConfigError(f"{where} is no JSON object: {error}") from error
    if line.get("benchmark") not in KINDS:
        raise ConfigError(f"{where} is no result of 'pymllm bench {'|'.join(KINDS)}'")
    if line["benchmark"] == "serve":
        line["load"] = line.get("concurrency") or line.get("request_rate")
    return line


def _series(lines: Sequence[Line], kind: Kind, panel: Panel) -> dict[str, dict[Any, Line]]:
    """Label -> x -> line. A label says what tells its lines from others of this benchmark."""
    runs = {_run(line) for line in lines}
    varying = [name for name in kind.settings if name != panel.x and len({str(line[name]) for line in lines}) > 1]
    series: dict[str, dict[Any, Line]] = {}
    for line in lines:
        words = [kind.settings[name].format(_text(line[name])) for name in varying]
        if len(runs) > 1 or not words:
            words.insert(0, _run(line))
        series.setdefault(", ".join(words), {})[line[panel.x] if panel.x else ""] = line
    return series


def _run(line: Line) -> str:
    """What a run is called: its name, or else what it ran."""
    name = line.get("run_name") or line.get("model") or (line.get("engine") or {}).get("model")
    return Path(str(name)).name


def _text(value: Any) -> str:
    """A setting; bounds of lengths as "least-most"."""
    bounds = list(value.values()) if isinstance(value, dict) else value
    return "-".join(map(str, bounds)) if isinstance(bounds, list) else str(value)


def _draw(axes: Axes, panel: Panel, series: dict[str, dict[Any, Line]]) -> None:
    ticks = sorted({x for points in series.values() for x in points}, key=_order)
    for place, (label, points) in enumerate(series.items()):
        found = [(ticks.index(x), panel.value(line)) for x, line in sorted(points.items(), key=lambda p: _order(p[0]))]
        known = [(x, interval) for x, interval in found if interval is not None]
        middle = [interval[0] for _, interval in known]
        reach = [[m - i[1] for m, (_, i) in zip(middle, known)], [i[2] - m for m, (_, i) in zip(middle, known)]]
        if panel.x is None:
            bars = axes.barh([place] * len(middle), middle, xerr=reach, capsize=3, color=f"C{place}", height=0.6)
            axes.bar_label(bars, fmt="{:,.0f}", padding=4, fontsize="small", label_type="center", color="white")
        elif known:
            style = "so^Dv*PX"[place % 8]
            axes.errorbar([x for x, _ in known], middle, yerr=reach, label=label, marker=style, capsize=3)
    axes.set_title(panel.title, fontsize="medium")
    if panel.x is None:
        axes.set_yticks(range(len(series)), list(series))
        axes.invert_yaxis()
        axes.set_xlabel(panel.y_label)
        axes.grid(axis="x", alpha=0.3)
        return
    axes.set_xticks(range(len(ticks)), [str(tick) for tick in ticks])
    axes.set_xlabel(panel.x_label)
    axes.set_ylabel(panel.y_label)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize="small")


def _order(value: Any) -> tuple[bool, float]:
    """Numbers by size, then the rest ("inf")."""
    return (False, value) if isinstance(value, (int, float)) else (True, 0.0)
