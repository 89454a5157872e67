from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from pymllm.compose import compose
from pymllm.config import Config
from pymllm.frontend.launch import launch_frontend
from pymllm.server.host import Host
from pymllm.server.serve import listener
from pymllm.server.state import ServerState
from pymllm.testing.tiny import make_tiny_checkpoint

SECONDS = 60
"""Until a test is given up: other processes may use the cores."""


@dataclass
class RunningServer:
    """A real server on a free port of this machine, in a thread of the test process."""

    host: Host
    url: str
    thread: threading.Thread
    statuses: list[int]

    @property
    def state(self) -> ServerState:
        return self.host.state

    def wait(self) -> int:
        """The exit status, once the server has ended."""
        self.thread.join(SECONDS)
        assert not self.thread.is_alive()
        return self.statuses[0]

    def wait_running(self, count: int) -> None:
        """Until the engine runs so many requests."""
        deadline = time.monotonic() + SECONDS
        while self.state.frontend.client.stats().running != count:
            assert time.monotonic() < deadline, self.state.frontend.client.stats()
            time.sleep(0.005)

    def wait_idle(self) -> None:
        """Until the engine holds no request any more."""
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            stats = self.state.frontend.client.stats()
            if stats.running == stats.waiting == self.state.open_answers == 0:
                return
            time.sleep(0.01)
        pytest.fail(f"still open: {self.state.open_answers}, {self.state.frontend.client.stats()}")


StartServer = Callable[..., AbstractContextManager[RunningServer]]


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model with a context long enough for answers that last until somebody ends them."""
    return make_tiny_checkpoint(tmp_path_factory.mktemp("server") / "tiny", max_position_embeddings=32768)


@pytest.fixture(scope="session")
def settings(checkpoint: Path) -> dict[str, Any]:
    return {
        "model.path": str(checkpoint),
        "model.dtype": "float32",
        "engine.process": False,
        "engine.max_total_tokens": 65536,
        "engine.max_batch_tokens": 128,
        "server.port": 0,
        "log.level": "warning",
    }


@pytest.fixture(scope="session")
def start_server(settings: dict[str, Any]) -> StartServer:
    @contextmanager
    def start(overrides: dict[str, Any] | None = None) -> Iterator[RunningServer]:
        config: Config = compose(None, {**settings, **(overrides or {})})

        def launch() -> Any:
            return launch_frontend(config, process=False, progress=False)

        bound = listener(config.server)
        host = Host(launch(), config, bound, launch)
        statuses: list[int] = []
        thread = threading.Thread(target=lambda: statuses.append(asyncio.run(host.run())), daemon=True)
        thread.start()
        assert host.started.wait(SECONDS)
        running = RunningServer(host, f"http://127.0.0.1:{bound.getsockname()[1]}", thread, statuses)
        try:
            yield running
        finally:
            if thread.is_alive():
                host.stop()
            running.wait()

    return start


@pytest.fixture(scope="session")
def server(start_server: StartServer) -> Iterator[RunningServer]:
    """One server for all tests that need no settings of their own."""
    with start_server() as running:
        yield running


@pytest.fixture
def http(server: RunningServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=30) as client:
        yield client
