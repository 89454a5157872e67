"""Reads what matters of a Chrome trace that ``torch.profiler`` wrote: who did what from when to when."""

from __future__ import annotations

import gzip
import zlib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import msgspec

from pymllm.errors import ConfigError

DEVICE_WORK = ("kernel", "gpu_memcpy", "gpu_memset")
"""Categories of what a GPU executes. Its annotations only repeat those of the host."""

HOST_WORK = ("cpu_op", "user_annotation", "cuda_runtime", "cuda_driver", "python_function")

STEP = "ProfilerStep#"
"""Annotations that span a whole step, and so say nothing of what is done in it."""


@dataclass(frozen=True)
class Activity:
    """Something that was done from ``start`` to ``end``, microseconds of the trace's clock."""

    start: float
    end: float
    name: str
    category: str


class _Event(msgspec.Struct):
    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: int | str = 0
    tid: int | str = 0
    ts: float = 0.0
    dur: float = 0.0


class _File(msgspec.Struct):
    events: list[_Event] = msgspec.field(name="traceEvents")


@dataclass(frozen=True)
class TraceFile:
    """devices: GPU -> its work, by start. streams: GPU -> how many it worked in. host: what the thread did that
    launched most of it, by start, enclosing activities first. launches: calls of the runtime that launched work,
    by name, of all threads. steps: marked by the profiler; 0 if it was not told of any."""

    devices: dict[int | str, list[Activity]]
    streams: dict[int | str, int]
    host: list[Activity]
    launches: dict[str, int]
    steps: int


def read_trace(path: Path) -> TraceFile:
    """Raises ConfigError for what is no trace."""
    try:
        raw = path.read_bytes()
        if raw[:2] == b"\x1f\x8b":
            raw = gzip.decompress(raw)
        file = msgspec.json.decode(raw, type=_File, strict=False)
    except OSError as error:
        raise ConfigError(f"'{path}' cannot be read: {error.strerror or error}") from error
    except (EOFError, zlib.error, msgspec.DecodeError) as error:
        raise ConfigError(f"'{path}' is no Chrome trace of torch.profiler: {error}") from error
    events = [event for event in file.events if event.ph == "X"]
    devices: dict[int | str, list[Activity]] = {}
    streams: dict[int | str, set[int | str]] = {}
    for event in events:
        if event.cat in DEVICE_WORK:
            devices.setdefault(event.pid, []).append(_activity(event))
            streams.setdefault(event.pid, set()).add(event.tid)
    for work in devices.values():
        work.sort(key=lambda activity: activity.start)
    host = [event for event in events if event.cat in HOST_WORK]
    thread = _launching_thread(host)
    return TraceFile(
        devices=dict(sorted(devices.items(), key=lambda item: str(item[0]))),
        streams={device: len(found) for device, found in streams.items()},
        host=sorted(
            (_activity(event) for event in host if event.tid == thread and not event.name.startswith(STEP)),
            key=lambda activity: (activity.start, -activity.end),
        ),
        launches=dict(Counter(event.name for event in host if _launches(event))),
        steps=sum(event.cat == "user_annotation" and event.name.startswith(STEP) for event in host),
    )


def _activity(event: _Event) -> Activity:
    return Activity(event.ts, event.ts + event.dur, event.name, event.cat)


def _launches(event: _Event) -> bool:
    return event.cat in ("cuda_runtime", "cuda_driver") and "Launch" in event.name


def _launching_thread(host: list[_Event]) -> int | str | None:
    """The thread with most launches; if none launched anything, the busiest one."""
    threads = Counter(event.tid for event in host if _launches(event)) or Counter(event.tid for event in host)
    return threads.most_common(1)[0][0] if threads else None
