"""Draws result files: one row of diagrams for each benchmark in them, one line or bar for each run and setting.

Points are medians and bars reach from the best to the worst repeat, or from p50 to p99 where a title says so. Of
equal lines (the same run name and setting) the last one counts. Needs matplotlib: ``pip install 'pymllm[plot]'``.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from pymllm.bench.panels import KINDS, Interval, Kind, Line, Panel, kind_of
from pymllm.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH, HEIGHT = 4.8, 4.4
"""Inches of a diagram."""

ASIDE = 0.02
"""Lines stand so far aside of one another, in steps of the axis, that equal values can be seen."""

MARKERS = "so^Dv*PX"

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
    found = {name: [line for line in lines if line["benchmark"] == name] for name in KINDS}
    kinds = [(kind_of(name, mine), mine) for name, mine in found.items() if mine]
    columns = max(len(kind.panels) for kind, _ in kinds)
    figure = Figure(figsize=(WIDTH * columns, HEIGHT * len(kinds)), layout="constrained")
    grid = figure.subplots(len(kinds), columns, squeeze=False)
    for row, (kind, mine) in zip(grid, kinds):
        for axes, panel in zip(row, kind.panels):
            _draw(axes, panel, _series(mine, kind, panel))
        for axes in row[len(kind.panels) :]:
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
    axes.set_title(panel.title, fontsize="medium")
    if panel.x is None:
        _bars(axes, panel, series)
    else:
        _lines(axes, panel, series)


def _bars(axes: Axes, panel: Panel, series: dict[str, dict[Any, Line]]) -> None:
    for place, points in enumerate(series.values()):
        for interval in filter(None, map(panel.value, points.values())):
            middle, reach = _reach([interval])
            bars = axes.barh([place], middle, xerr=reach, capsize=3, color=f"C{place}", height=0.6)
            axes.bar_label(bars, fmt="{:,.0f}", label_type="center", color="white", fontsize="small")
    axes.set_yticks(range(len(series)), list(series))
    axes.invert_yaxis()
    axes.set_xlabel(panel.y_label)
    axes.xaxis.set_major_formatter("{x:,.10g}")
    axes.grid(axis="x", alpha=0.3)


def _lines(axes: Axes, panel: Panel, series: dict[str, dict[Any, Line]]) -> None:
    ticks = sorted({x for points in series.values() for x in points}, key=_order)
    for place, (label, points) in enumerate(series.items()):
        aside = ASIDE * (place - (len(series) - 1) / 2)
        values = [(ticks.index(x) + aside, panel.value(points[x])) for x in sorted(points, key=_order)]
        known = [(x, interval) for x, interval in values if interval is not None]
        if known:
            middle, reach = _reach([interval for _, interval in known])
            marker = MARKERS[place % len(MARKERS)]
            axes.errorbar(
                [x for x, _ in known], middle, yerr=reach, label=label, marker=marker, markersize=5, capsize=3
            )
    axes.set_xticks(range(len(ticks)), ["no limit" if tick is None else str(tick) for tick in ticks])
    axes.set_xlabel(panel.x_label)
    axes.set_ylabel(panel.y_label)
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter("{x:,.10g}")
    axes.grid(alpha=0.3)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.18), ncols=2, fontsize="small", frameon=False)


def _reach(intervals: Sequence[Interval]) -> tuple[list[float], list[list[float]]]:
    """The values, and how far their bars reach down and up."""
    middle = [value for value, _, _ in intervals]
    return middle, [[value - low for value, low, _ in intervals], [high - value for value, _, high in intervals]]


def _order(value: Any) -> tuple[bool, float]:
    """Numbers by size, then the rest ("inf" and null: no limit)."""
    return (False, value) if isinstance(value, (int, float)) else (True, 0.0)
