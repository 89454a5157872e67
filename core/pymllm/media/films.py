"""Video files, decoded by FFmpeg in a process of its own (:mod:`~pymllm.media.film_process`).

A stranger's file is read there because FFmpeg cannot be interrupted, allocates what a file's tables say, and is
written in C: time and memory are limited from outside, and a crash ends one request. The price is the start
of a process, less than a second a video.
"""

from __future__ import annotations

import importlib.util
import json
import os
import select
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from typing import IO, Any

import numpy as np

from pymllm.config import MediaConfig
from pymllm.errors import RequestError
from pymllm.media.budget import Budget, Clock
from pymllm.media.checks import check_size
from pymllm.media.formats.film import whole
from pymllm.media.formats.header import broken
from pymllm.media.formats.sniff import FilmKind
from pymllm.media.picture import Video
from pymllm.media.reference import VideoReference

_TICK = 50
"""Milliseconds between two looks at the clock."""

_LONGEST = 2**20
"""Bytes of a message."""

_KEPT = ("PATH", "LD_LIBRARY_PATH", "LANG")
"""Environment that the process gets: no keys and tokens."""

_THREADS = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
"""NumPy would reserve memory for a thread a core, more than the process may have on a large machine."""

_MAIN = "import sys; sys.path[:] = {path!r}; from pymllm.media.film_process import main; main()"


def decode_film(kind: FilmKind, data: bytes, video: VideoReference, config: MediaConfig, budget: Budget) -> Video:
    """Frames of a video file, evenly from the first to the last, turned upright. Runs in a worker thread.
    Raises RequestError."""
    if importlib.util.find_spec("av") is None:
        raise RequestError(
            "this server reads no video files (it lacks PyAV: pip install 'pymllm[video]'); send an animated GIF "
            "or a list of frames"
        )
    if not whole(kind, data):
        raise broken(kind)
    asked = {"fps": video.fps, "num_frames": video.num_frames, "min_frames": video.min_frames}
    task = json.dumps({"kind": kind, "video": asked, "config": asdict(config)})
    with _started(data, task) as process:
        assert process.stdout is not None
        reader = _Reader(process.stdout, budget.clock())
        try:
            _check_started(reader)
            return _receive(reader, config, budget)
        except _Broken:
            raise broken(kind) from None
        finally:
            process.kill()


def _started(data: bytes, task: str) -> subprocess.Popen[bytes]:
    with tempfile.TemporaryFile() as file:
        file.write(data)
        file.seek(0)
        return subprocess.Popen(
            [sys.executable, "-I", "-c", _MAIN.format(path=sys.path), task],
            stdin=file,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=_THREADS | {name: os.environ[name] for name in _KEPT if name in os.environ},
        )


def _check_started(reader: _Reader) -> None:
    try:
        reader.message()
    except _Broken:  # it has not looked at the file yet
        raise RuntimeError("the process that decodes videos cannot be started") from None


def _receive(reader: _Reader, config: MediaConfig, budget: Budget) -> Video:
    plan = reader.message()
    times, height, width = plan["times"], int(plan["height"]), int(plan["width"])
    check_size(width, height, config.max_pixels)
    budget.take_pixels(len(times) * height * width)
    frames = np.empty((len(times), height, width, 3), np.uint8)
    for frame in frames:
        reader.message()
        reader.fill(frame.data.cast("B"))
    return Video.of(frames, times, float(plan["duration"]))


class _Broken(Exception):
    """The process found the file broken, or died of it."""


class _Reader:
    """Reads a pipe as long as the clock allows."""

    def __init__(self, pipe: IO[bytes], clock: Clock) -> None:
        self._pipe = pipe.fileno()
        self._poll = select.poll()
        self._poll.register(self._pipe, select.POLLIN)
        self._clock = clock

    def message(self) -> Mapping[str, Any]:
        """The next one. Raises RequestError with the sentence that it may hold, and _Broken."""
        length = bytearray(4)
        self.fill(memoryview(length))
        content = bytearray(min(int.from_bytes(length, "big"), _LONGEST))
        self.fill(memoryview(content))
        message: Mapping[str, Any] = json.loads(content)
        if "error" in message:
            raise RequestError(message["error"]) if message["error"] else _Broken
        return message

    def fill(self, buffer: memoryview) -> None:
        """Reads as much as fits. Raises _Broken if the pipe ends before."""
        while buffer:
            self._clock.check()
            if self._poll.poll(_TICK):
                count = os.readv(self._pipe, [buffer])
                if count == 0:
                    raise _Broken
                buffer = buffer[count:]
