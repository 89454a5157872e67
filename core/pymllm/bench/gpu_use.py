"""How busy a GPU was in a trace, what kept it busy, and what the host did while it was idle.

Fields of the result, one for each GPU; times in microseconds:

device: its number in the trace. window_us: from its first activity to the end of its last. busy_us: of these, at
least one kernel, copy or fill ran, in whatever stream. busy_share: busy_us / window_us. streams, kernels, copies
(fills included): how many. steps: of the engine, if they are marked. launches: calls of the host that launched work
(a graph is one), by name.
idle: gaps between activities by their length: {at_least_us, count, total_us}.
gaps: the longest ones: {start_us (from the window's start), length_us, after, before (the activities around it), host}.
host, and host_while_idle for all gaps together: {name, total_us} of what the launching thread was doing, innermost;
NOTHING stands for time in which nothing was recorded, mostly Python itself.
top: kernels by their total time: {name, count, total_us, mean_us, share (of the time of all activities)}.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from pymllm.bench.trace_file import Activity, TraceFile

NOTHING = "(nothing recorded)"

IDLE_CLASSES = (0.0, 5.0, 20.0, 100.0, 1000.0)
"""Least length of the gaps of each class, microseconds."""


@dataclass(frozen=True)
class NamedTime:
    """Time spent in something."""

    name: str
    total_us: float


@dataclass(frozen=True)
class KernelTime:
    """All runs of a kernel, copy or fill."""

    name: str
    count: int
    total_us: float
    mean_us: float
    share: float


@dataclass(frozen=True)
class IdleClass:
    """Gaps of similar length."""

    at_least_us: float
    count: int
    total_us: float


@dataclass(frozen=True)
class Gap:
    """A time in which the GPU did nothing."""

    start_us: float
    length_us: float
    after: str
    before: str
    host: list[NamedTime]


@dataclass(frozen=True)
class GpuUse:
    """One GPU's use; see the module."""

    device: int | str
    window_us: float
    busy_us: float
    busy_share: float
    streams: int
    kernels: int
    copies: int
    steps: int
    launches: Mapping[str, int]
    idle: list[IdleClass]
    gaps: list[Gap]
    host_while_idle: list[NamedTime]
    top: list[KernelTime]


@dataclass(frozen=True)
class _Idle:
    start: float
    end: float
    after: str
    before: str

    @property
    def length(self) -> float:
        return self.end - self.start


def gpu_use(trace: TraceFile, most: int = 10) -> list[GpuUse]:
    """One result for each GPU of the trace. most: entries of every list of the largest."""
    segments = list(innermost(trace.host))
    return [_use(trace, device, segments, most) for device in trace.devices]


def _use(trace: TraceFile, device: int | str, segments: list[Activity], most: int) -> GpuUse:
    work = trace.devices[device]
    first, last = work[0].start, max(activity.end for activity in work)
    idle = list(_idle(work))
    window = last - first
    busy = window - sum(gap.length for gap in idle)
    hosts = _overlaps(idle, segments)
    together: defaultdict[str, float] = defaultdict(float)
    for host in hosts:
        for name, time in host.items():
            together[name] += time
    longest = sorted(range(len(idle)), key=lambda index: -idle[index].length)[:most]
    kernels = sum(activity.category == "kernel" for activity in work)
    return GpuUse(
        device=device,
        window_us=window,
        busy_us=busy,
        busy_share=busy / window if window else 1.0,
        streams=trace.streams[device],
        kernels=kernels,
        copies=len(work) - kernels,
        steps=trace.steps,
        launches=trace.launches,
        idle=_classes(gap.length for gap in idle),
        gaps=[
            Gap(idle[i].start - first, idle[i].length, idle[i].after, idle[i].before, _most(hosts[i], most))
            for i in longest
        ],
        host_while_idle=_most(together, most),
        top=_top(work, most),
    )


def _idle(work: list[Activity]) -> Iterator[_Idle]:
    """The gaps between activities, in order. work: by start."""
    latest = work[0]
    for activity in work:
        if activity.start > latest.end:
            yield _Idle(latest.end, activity.start, latest.name, activity.name)
        if activity.end > latest.end:
            latest = activity


def innermost(host: Iterable[Activity]) -> Iterator[Activity]:
    """What a thread was doing at each moment: the activities cut into pieces that do not overlap, each named after
    the innermost activity. host: by start, enclosing ones first."""
    open_ones: list[Activity] = []
    now = float("-inf")
    for activity in host:
        while open_ones and open_ones[-1].end <= activity.start:
            done = open_ones.pop()
            if done.end > now:
                yield Activity(now, done.end, done.name, done.category)
                now = done.end
        if open_ones and activity.start > now:
            yield Activity(now, activity.start, open_ones[-1].name, open_ones[-1].category)
        now = max(now, activity.start)
        open_ones.append(activity)
    while open_ones:
        done = open_ones.pop()
        if done.end > now:
            yield Activity(now, done.end, done.name, done.category)
            now = done.end


def _overlaps(idle: list[_Idle], segments: list[Activity]) -> list[dict[str, float]]:
    """For each gap, how long each name lasted in it. Both in order."""
    found: list[dict[str, float]] = []
    first = 0
    for gap in idle:
        times: defaultdict[str, float] = defaultdict(float)
        while first < len(segments) and segments[first].end <= gap.start:
            first += 1
        index = first
        while index < len(segments) and segments[index].start < gap.end:
            segment = segments[index]
            times[segment.name] += min(segment.end, gap.end) - max(segment.start, gap.start)
            index += 1
        times[NOTHING] += gap.length - sum(times.values())
        found.append(times)
    return found


def _most(times: Mapping[str, float], most: int) -> list[NamedTime]:
    ranked = sorted(times.items(), key=lambda item: -item[1])
    return [NamedTime(name, total) for name, total in ranked[:most] if total > 0]


def _classes(lengths: Iterable[float]) -> list[IdleClass]:
    counts: defaultdict[float, list[float]] = defaultdict(list)
    for length in lengths:
        counts[max(least for least in IDLE_CLASSES if length >= least)].append(length)
    return [IdleClass(least, len(counts[least]), sum(counts[least])) for least in IDLE_CLASSES]


def _top(work: list[Activity], most: int) -> list[KernelTime]:
    times: defaultdict[str, list[float]] = defaultdict(list)
    for activity in work:
        times[activity.name].append(activity.end - activity.start)
    every = sum(map(sum, times.values()))
    ranked = sorted(times.items(), key=lambda item: -sum(item[1]))[:most]
    return [
        KernelTime(name, len(found), sum(found), sum(found) / len(found), sum(found) / every if every else 0.0)
        for name, found in ranked
    ]
