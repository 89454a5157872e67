"""An engine in a process of its own, so that serving HTTP never holds up the model."""

from __future__ import annotations

import logging
import shutil
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import Future

import zmq

import pymllm.errors
from pymllm.compose import to_dict
from pymllm.config import Config
from pymllm.engine import wire
from pymllm.engine.admission import check
from pymllm.engine.client import Deliver, EngineClient
from pymllm.engine.deliveries import Deliveries
from pymllm.engine.messages import EngineInfo, EngineRequest, EngineStats
from pymllm.errors import EngineDeadError, PymllmError

log = logging.getLogger(__name__)

POLL_MS = 200
CLOSE_SECONDS = 10.0


class ProcessClient(EngineClient):
    """Starts an engine process and waits until it is loaded. Raises what building the engine raised.

    progress: let the process draw progress bars on standard error.
    """

    def __init__(self, config: Config, *, progress: bool) -> None:
        self._folder = tempfile.mkdtemp(prefix="pymllm-")  # only this user may enter, hence connect
        self._context = zmq.Context()
        self._commands, self._results = self._context.socket(zmq.PUSH), self._context.socket(zmq.PULL)
        addresses = []
        for name, socket in (("commands", self._commands), ("results", self._results)):
            socket.set_hwm(0)
            socket.linger = 0
            addresses.append(f"ipc://{self._folder}/{name}")
            socket.bind(addresses[-1])
        self._process = subprocess.Popen(
            [sys.executable, "-m", "pymllm.engine.worker", *addresses], stdin=subprocess.PIPE
        )
        self._send_lock = threading.Lock()
        self._deliveries = Deliveries()
        self._stats = EngineStats()
        self._resets: list[Future[int]] = []
        self._closing = False
        self._closed = False
        started: Future[EngineInfo] = Future()
        self._thread = threading.Thread(target=self._receive, args=(started,), name="pymllm-client", daemon=True)
        self._thread.start()
        self._send(wire.Start(to_dict(config), progress))
        try:
            self.info = started.result()
        except BaseException:
            self.close()
            raise

    def submit(self, request: EngineRequest, deliver: Deliver) -> None:
        check(request, self.info)
        self._deliveries.open(request.id, deliver)
        self._send(wire.Submit(request))

    def abort(self, request_id: str) -> None:
        self._send(wire.Abort(request_id))

    def stats(self) -> EngineStats:
        return self._stats

    def reset_cache(self) -> int:
        dropped: Future[int] = Future()
        with self._send_lock:
            self._resets.append(dropped)
        self._send(wire.ResetCache())
        if not self.alive:
            raise EngineDeadError("the engine has ended")
        return dropped.result()

    @property
    def alive(self) -> bool:
        return self._deliveries.accepting

    def close(self) -> None:
        with self._send_lock:
            if self._closed:
                return
            self._closed = self._closing = True
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

    def _send(self, message: wire.ToEngine) -> None:
        with self._send_lock:
            if not self._commands.closed:
                self._commands.send(wire.encoder.encode(message))

    def _receive(self, started: Future[EngineInfo]) -> None:
        """The client's thread: passes on what the process sends, and notices when it is gone."""
        reason = "the engine was closed"
        while True:
            if not self._results.poll(POLL_MS):
                code = self._process.poll()
                if code is None:
                    continue
                if not self._results.poll(0):  # what it sent last is still read
                    if not self._closing:
                        reason = f"the engine process ended unexpectedly ({_cause(code)})"
                    break
            message = wire.from_engine.decode(self._results.recv())
            if isinstance(message, wire.Failed) and not started.done():
                started.set_exception(_error(message))
            elif isinstance(message, wire.Failed):
                reason = message.message
            else:
                self._take(message, started)
        if not started.done():
            started.set_exception(EngineDeadError(f"{reason} while it was starting; its messages are above"))
        error = EngineDeadError(reason)
        self._deliveries.close(error, aborted=self._closing)
        for dropped in self._resets:
            dropped.set_exception(error)

    def _take(self, message: wire.FromEngine, started: Future[EngineInfo]) -> None:
        if isinstance(message, wire.Stepped):
            self._stats = message.stats
            self._deliveries.deliver(message.outputs)
        elif isinstance(message, wire.Ready):
            started.set_result(message.info)
        elif isinstance(message, wire.CacheReset):
            self._resets.pop(0).set_result(message.pages)


def _cause(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"


def _error(message: wire.Failed) -> PymllmError:
    """The error of the engine process, as the class it was."""
    kind = getattr(pymllm.errors, message.kind, PymllmError)
    error = kind(message.message)
    assert isinstance(error, PymllmError)
    return error
