"""What one request may use, counted while it is used."""

from __future__ import annotations

import threading
import time

from pymllm.config import MediaConfig
from pymllm.errors import RequestError


class Budget:
    """Bytes and pixels that a request has left. All methods may be called from any thread."""

    def __init__(self, config: MediaConfig) -> None:
        self._config = config
        self._bytes = config.max_request_bytes
        self._pixels = config.max_request_pixels
        self._lock = threading.Lock()
        self._cancelled = False

    def take_bytes(self, count: int) -> None:
        """Raises RequestError if the files of the request get too large together."""
        with self._lock:
            self._bytes -= count
            left = self._bytes
        if left < 0:
            limit = f"{self._config.max_request_bytes} bytes (media.max_request_bytes)"
            raise RequestError(f"the files of this request are together larger than {limit}")

    def take_pixels(self, count: int) -> None:
        """Raises RequestError if the pixels of the request get too many together."""
        with self._lock:
            self._pixels -= count
            left = self._pixels
        if left < 0:
            limit = f"{self._config.max_request_pixels} pixels (media.max_request_pixels)"
            raise RequestError(f"the pictures and frames of this request have together more than {limit}")

    def cancel(self) -> None:
        """Nobody waits any more: decoding stops at the next frame."""
        self._cancelled = True

    def clock(self) -> Clock:
        """Started now, for the decoding of one item."""
        return Clock(self, self._config.decode_timeout_seconds)

    @property
    def cancelled(self) -> bool:
        return self._cancelled


class Clock:
    """The time that one item may take, looked at between frames."""

    def __init__(self, budget: Budget, seconds: float) -> None:
        self._budget = budget
        self._seconds = seconds
        self._end = time.monotonic() + seconds

    def check(self) -> None:
        """Raises RequestError if the time is over or nobody waits any more."""
        if self._budget.cancelled:
            raise RequestError("the request was aborted")
        if time.monotonic() > self._end:
            limit = f"{self._seconds:g} seconds (media.decode_timeout_seconds)"
            raise RequestError(f"it was not decoded within {limit}")
