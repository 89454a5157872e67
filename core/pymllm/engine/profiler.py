"""Profiles of a running engine. Whatever steps the engine owns one, and calls it on the thread that steps."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pymllm.engine.messages import Profile, ProfileRequest
from pymllm.errors import ConflictError, RequestError
from pymllm.trace import Recording

log = logging.getLogger(__name__)


@dataclass
class _Running:
    recording: Recording
    profile: Profile
    steps: int | None


class StepProfiler:
    """Records an engine's steps into a trace, one at a time."""

    def __init__(self, device: str, warn: Callable[[], None] = lambda: None) -> None:
        """device: as in EngineInfo. warn: called before what may take seconds: to start, and to write a trace."""
        self._device = device.partition(" ")[0]
        self._warn = warn
        self._running: _Running | None = None
        self._last: str | None = None

    def start(self, wanted: ProfileRequest) -> Profile:
        """Record from now on. Raises ConflictError while a profile runs or if the profiler cannot be started,
        RequestError for a folder that cannot be written to."""
        if self._running is not None:
            raise ConflictError(f"a profile is running already, into '{self._running.profile.path}'; stop it first")
        path = _new_file(wanted.folder)
        self._warn()
        try:
            recording = Recording(self._device, stacks=wanted.stacks)
        except Exception as error:  # whatever it is, it must not end the engine
            raise ConflictError(f"the profiler cannot be started: {error}") from error
        self._running = _Running(recording, Profile(path=str(path)), wanted.steps)
        return self._running.profile

    def stepped(self) -> None:
        """A step has ended. Writes the trace if it was the last one asked for; never raises."""
        running = self._running
        if running is None:
            return
        running.profile.steps += 1
        if running.profile.steps != running.steps:
            running.recording.mark()
            return
        try:
            self.stop()
        except Exception:  # nobody asked just now, and the engine must go on
            log.exception("the profile could not be written to %s", running.profile.path)

    def stop(self) -> Profile:
        """Write the trace. Raises ConflictError if no profile runs, RequestError if it cannot be written."""
        running, self._running = self._running, None
        if running is None:
            last = f"; the last trace is '{self._last}'" if self._last else ""
            raise ConflictError(f"no profile is running{last}")
        self._warn()
        profile = running.profile
        try:
            running.recording.stop()
            running.recording.write(Path(profile.path))
        except Exception as error:  # whatever it is, it must not end the engine
            reason = getattr(error, "strerror", None) or error
            raise RequestError(f"the trace cannot be written to '{profile.path}': {reason}") from error
        self._last = profile.path
        log.info("profile of %d steps written to %s", profile.steps, profile.path)
        return profile

    def close(self) -> None:
        """Give up a profile that still runs."""
        running, self._running = self._running, None
        if running is not None:
            log.warning("the engine ends while a profile runs: it is not written")
            with suppress(Exception):  # a device that was lost, say, which is why the engine ends
                running.recording.stop()


def _new_file(folder: str) -> Path:
    """A file that is not there yet, in a folder that is. Raises RequestError."""
    place = Path(folder)
    try:
        place.mkdir(parents=True, exist_ok=True)
        if not os.access(place, os.W_OK):
            raise PermissionError(13, "Permission denied")
    except OSError as error:
        raise RequestError(f"traces cannot be written to '{folder}': {error.strerror}") from error
    name = f"pymllm-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    paths = (place / f"{name}-{count}.trace.json.gz" for count in range(10_000))
    return next(path for path in paths if not path.exists())
