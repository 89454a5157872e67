"""An engine in a process of its own, so that serving HTTP never holds up the model."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

import zmq

import pymllm.errors
from pymllm.compose import to_dict
from pymllm.config import Config
from pymllm.engine import wire
from pymllm.engine.admission import check
from pymllm.engine.client import Deliver, EngineClient
from pymllm.engine.deliveries import Deliveries
from pymllm.engine.messages import EngineInfo, EngineRequest, EngineStats, Profile, ProfileRequest
from pymllm.errors import EngineDeadError, PymllmError, RequestError

log = logging.getLogger(__name__)

Answered = wire.Ready | wire.Stepped | wire.CacheReset | wire.Profiled | wire.Refused

POLL_MS = 200
CLOSE_SECONDS = 10.0


class ProcessClient(EngineClient):
    """Starts an engine process and waits until it is loaded. Raises what building the engine raised.

    progress: let the process draw progress bars on standard error. worker: the command that is the engine process,
    given two addresses; default: :mod:`pymllm.engine.worker`.
    """

    def __init__(self, config: Config, *, progress: bool, worker: Sequence[str] | None = None) -> None:
        self._folder = _socket_folder()
        self._stall_seconds = config.engine.stall_seconds
        self._context = zmq.Context()
        self._commands, self._results = self._context.socket(zmq.PUSH), self._context.socket(zmq.PULL)
        addresses = []
        for name, socket in (("commands", self._commands), ("results", self._results)):
            socket.set_hwm(0)
            socket.linger = 0
            addresses.append(f"ipc://{self._folder}/{name}")
            socket.bind(addresses[-1])
        command = worker or (sys.executable, "-m", "pymllm.engine.worker")
        self._process = subprocess.Popen([*command, *addresses], stdin=subprocess.PIPE)
        self._send_lock = threading.Lock()
        self._deliveries = Deliveries()
        self._stats = EngineStats()
        self._closing = False
        self._closed = False
        started: Future[EngineInfo] = Future()
        self._thread = threading.Thread(target=self._receive, args=(started,), name="pymllm-client", daemon=True)
        self._thread.start()
        try:
            self._send_start(wire.Start(to_dict(config), progress), started)
            self.info = started.result()
        except BaseException:
            self._process.kill()  # it may be loading, and reads no message then
            self.close()
            raise

    def submit(self, request: EngineRequest, deliver: Deliver) -> None:
        check(request, self.info)
        try:
            message = wire.encoder.encode(wire.Submit(request))
        except (TypeError, ValueError, OverflowError) as error:
            raise RequestError(f"the request cannot be sent to the engine process: {error}") from error
        self._deliveries.open(request.id, deliver)
        self._send_bytes(message)

    def abort(self, request_id: str) -> None:
        self._send(wire.Abort(request_id))

    def stats(self) -> EngineStats:
        return self._stats

    def reset_cache(self) -> int:
        return int(self._ask(wire.ResetCache()))

    def start_profile(self, wanted: ProfileRequest) -> Profile:
        return self._ask(wire.StartProfile(wanted))

    def stop_profile(self) -> Profile:
        return self._ask(wire.StopProfile())

    def _ask(self, question: wire.ResetCache | wire.StartProfile | wire.StopProfile) -> Any:
        return self._deliveries.ask(lambda: self._send(question)).result()

    @property
    def alive(self) -> bool:
        return self._deliveries.accepting

    def close(self) -> None:
        self._closing = True
        if threading.current_thread() is self._thread:  # a receiver that closes; it cannot wait for itself
            self._send(wire.Stop())
            return
        with self._send_lock:
            if self._closed:
                return
            self._closed = True
        self._send(wire.Stop())
        try:
            self._process.wait(CLOSE_SECONDS)
        except subprocess.TimeoutExpired:
            log.warning("the engine process did not stop in %.0f s and is ended", CLOSE_SECONDS)
            self._process.kill()
            self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._thread.join()
        self._context.destroy()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _send_start(self, message: wire.Start, started: Future[EngineInfo]) -> None:
        """Send the first message once the process is there to take it; not at all if it ends before."""
        while not started.done():
            if self._commands.poll(POLL_MS, zmq.POLLOUT):
                return self._send(message)

    def _send(self, message: wire.ToEngine) -> None:
        self._send_bytes(wire.encoder.encode(message))

    def _send_bytes(self, message: bytes) -> None:
        """Queue a message; never waits. A process that is gone needs none: ``_receive`` ends what is open."""
        with self._send_lock, suppress(zmq.Again):
            if not self._commands.closed:
                self._commands.send(message, zmq.NOBLOCK)

    def _receive(self, started: Future[EngineInfo]) -> None:
        """The client's thread: passes on what the process sends, and ends everything when it is gone."""
        reason = "the engine client failed"
        try:
            reason = self._pass_on(started)
        except Exception as error:
            log.exception("the engine client failed")
            reason = f"the engine client failed: {type(error).__name__}: {error}"
            self._process.kill()
        finally:
            if not started.done():
                started.set_exception(EngineDeadError(f"{reason} while it was starting; its messages are above"))
            self._deliveries.close(EngineDeadError(reason), aborted=self._closing)

    def _pass_on(self, started: Future[EngineInfo]) -> str:
        """Take messages until the process is gone, and say why it is."""
        failure = None
        heard = time.monotonic()
        while True:
            if not self._results.poll(POLL_MS):
                code = self._process.poll()
                if code is None:
                    if not (started.done() and self._deliveries.any_open):
                        heard = time.monotonic()
                    elif time.monotonic() - heard > self._stall_seconds and failure is None:
                        failure = f"the engine made no progress for {self._stall_seconds:g} s and was ended"
                        log.error("%s (engine.stall_seconds)", failure)
                        self._process.kill()
                    continue
                if not self._results.poll(0):  # what it sent last is still read
                    unexpected = f"the engine process ended unexpectedly ({_cause(code)})"
                    return failure or ("the engine was closed" if self._closing else unexpected)
            message = wire.from_engine.decode(self._results.recv())
            heard = time.monotonic()
            if isinstance(message, wire.Failed):
                failure = message.message
                if not started.done():
                    started.set_exception(_error(message))
            elif isinstance(message, wire.Busy):
                heard += message.seconds
            else:
                self._take(message, started)

    def _take(self, message: Answered, started: Future[EngineInfo]) -> None:
        if isinstance(message, wire.Stepped):
            self._stats = message.stats
            self._deliveries.deliver(message.outputs)
        elif isinstance(message, wire.Ready):
            started.set_result(message.info)
        elif isinstance(message, wire.CacheReset):
            self._deliveries.answer(message.pages)
        elif isinstance(message, wire.Profiled):
            self._deliveries.answer(message.profile)
        elif isinstance(message, wire.Refused):
            self._deliveries.refuse(_error(message))


def _socket_folder() -> str:
    """A new folder that only this user may enter, hence connect. The address of a socket in it must be short,
    which a long TMPDIR does not leave room for."""
    folder = tempfile.mkdtemp(prefix="pymllm-")
    if len(folder) + len("/commands") > zmq.IPC_PATH_MAX_LEN:
        os.rmdir(folder)
        folder = tempfile.mkdtemp(prefix="pymllm-", dir="/tmp")
    return folder


def _cause(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"


def _error(message: wire.Failed | wire.Refused) -> PymllmError:
    """The error of the engine process, as the class it was."""
    kind = getattr(pymllm.errors, message.kind, PymllmError)
    error = kind(message.message)
    assert isinstance(error, PymllmError)
    return error
