"""Runs the app under uvicorn: signals, draining, and an engine that may die."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import threading
import time
from collections.abc import Callable, Generator
from typing import TypeVar

import uvicorn

from pymllm.config import Config
from pymllm.errors import PymllmError
from pymllm.frontend.frontend import Frontend
from pymllm.server.app import create_app
from pymllm.server.state import ServerState

log = logging.getLogger(__name__)

T = TypeVar("T")

FLUSH_SECONDS = 5
"""How long connections may take to receive their last bytes once their answers have ended."""

KEEP_ALIVE_SECONDS = 65
"""Longer than clients keep idle connections (httpx: 5 s), so that the client closes them, not both at once."""

WATCH_SECONDS = 0.25
MAX_RESTARTS = 3
STABLE_SECONDS = 60.0
"""An engine that dies sooner after its start counts as failing; so many failures in a row end the server."""


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers: they would end streams at once and change the exit status."""

    def __init__(self, config: uvicorn.Config, on_started: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_started = on_started

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._on_started()


class Host:
    """One serving run.

    launch: makes a new frontend when the engine has died and ``engine.restart`` is set; it may block.
    started: set once the port is open. The first SIGTERM or SIGINT (or ``stop``) drains, the second ends at once.
    """

    def __init__(self, frontend: Frontend, config: Config, listener: socket.socket, launch: Callable[[], Frontend]):
        self.started = threading.Event()
        self._config = config
        self._listener = listener
        self._launch = launch
        app = create_app(frontend, config)
        self.state: ServerState = app.state.server
        debug = config.log.level == "debug"
        settings = uvicorn.Config(
            app,
            log_config=None,
            log_level="info" if debug else "warning",
            access_log=debug,
            lifespan="off",
            ws="none",
            server_header=False,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=FLUSH_SECONDS,
        )
        self._server = _Server(settings, self._announce)
        self._status = 0
        self._drain: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def run(self) -> int:
        """Serve until stopped; returns the exit status and leaves the engine closed."""
        self._loop = asyncio.get_running_loop()
        watch = asyncio.ensure_future(self._watch_engine())
        try:
            with self._signals(self._loop):
                await self._server.serve(sockets=[self._listener])
        finally:
            watch.cancel()
            await asyncio.gather(watch, return_exceptions=True)
            self.state.shutdown()
            await asyncio.to_thread(self.state.frontend.close)
        return self._status

    def stop(self) -> None:
        """As a SIGTERM would, from any thread."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._on_signal, signal.SIGTERM)

    def _announce(self) -> None:
        host, port = self._listener.getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        log.info("serving '%s' at http://%s:%d", self.state.model_name, shown, port)
        self.started.set()

    @contextlib.contextmanager
    def _signals(self, loop: asyncio.AbstractEventLoop) -> Generator[None, None, None]:
        handled = [signal.SIGTERM, signal.SIGINT]
        if threading.current_thread() is not threading.main_thread():
            handled = []  # only the main thread may handle signals
        for number in handled:
            loop.add_signal_handler(number, self._on_signal, number)
        try:
            yield
        finally:
            for number in handled:
                loop.remove_signal_handler(number)

    def _on_signal(self, number: signal.Signals) -> None:
        if self._drain is None:
            self._drain = asyncio.ensure_future(self._drain_then_exit())
            return
        log.warning("ended by a second %s", number.name)
        self._status = 128 + number
        self._drain.cancel()
        self.state.abort(None)
        self._server.force_exit = self._server.should_exit = True

    async def _drain_then_exit(self) -> None:
        self.state.draining = True
        seconds = self._config.server.drain_seconds
        if self.state.open_answers:
            log.info("shutting down: %d answers may take up to %g s more", self.state.open_answers, seconds)
        else:
            log.info("shutting down")
        if not await self.state.settled(seconds):
            log.warning("aborting %d answers that are still open", self.state.open_answers)
            self.state.abort(None)
            await self.state.settled(FLUSH_SECONDS)
        self._server.should_exit = True

    async def _watch_engine(self) -> None:
        """Ends the server, or restarts the engine, when the engine has died."""
        failures, since = 0, time.monotonic()
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            if self.state.frontend.client.alive or self.state.draining:
                continue
            failures = failures + 1 if time.monotonic() - since < STABLE_SECONDS else 1
            if not self._config.engine.restart or failures > MAX_RESTARTS or not await self._restart():
                log.error("the engine has died; the server ends")
                self._status = 1
                self._server.should_exit = True
                return
            since = time.monotonic()

    async def _restart(self) -> bool:
        """Replace the dead engine; False when that failed."""
        log.warning("the engine has died; starting a new one")
        try:
            await asyncio.to_thread(self.state.frontend.close)
            self.state.frontend = await _in_daemon(self._launch)
        except PymllmError as error:
            log.error("the engine cannot be restarted: %s", error)
            return False
        log.info("the engine runs again")
        return True


async def _in_daemon(function: Callable[[], T]) -> T:
    """Run in a thread that does not hold up the end of the process, unlike those of an executor."""
    loop = asyncio.get_running_loop()
    result: asyncio.Future[T] = loop.create_future()

    def settle(value: T | None, error: BaseException | None) -> None:
        if result.cancelled():
            return
        if error is not None:
            result.set_exception(error)
        else:
            result.set_result(value)  # type: ignore[arg-type]

    def work() -> None:
        try:
            outcome: tuple[T | None, BaseException | None] = (function(), None)
        except BaseException as error:
            outcome = (None, error)
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(settle, *outcome)

    threading.Thread(target=work, name="pymllm-restart", daemon=True).start()
    return await result
