"""A tiny checkpoint, an LLM of it, and servers: a real one, and one whose every byte a test decides."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from pymllm import LLM
from pymllm.bench import ceilings
from pymllm.compose import compose
from pymllm.frontend.launch import launch_frontend
from pymllm.server.host import Host
from pymllm.server.serve import listener
from pymllm.testing.tiny import make_tiny_checkpoint

Script = Callable[[dict[str, Any]], tuple[int, list[Any]]]
"""The body of a request -> the status, and the events to send (or one error object)."""


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_checkpoint(tmp_path_factory.mktemp("bench") / "tiny")


@pytest.fixture(scope="session")
def settings(checkpoint: Path) -> dict[str, Any]:
    return {
        "model.path": str(checkpoint),
        "model.dtype": "float32",
        "engine.process": False,
        "engine.max_total_tokens": 8192,
        "server.port": 0,
        "log.level": "warning",
    }


@pytest.fixture(scope="session")
def llm(checkpoint: Path, settings: dict[str, Any]) -> Iterator[LLM]:
    with LLM(checkpoint, settings, progress=False) as loaded:
        yield loaded


@pytest.fixture(scope="module")
def server_url(settings: dict[str, Any]) -> Iterator[str]:
    """A pymllm server with a fresh prefix cache."""
    config = compose(None, settings)

    def launch() -> Any:
        return launch_frontend(config, process=False, progress=False)

    bound = listener(config.server)
    host = Host(launch(), config, bound, launch)
    thread = threading.Thread(target=lambda: asyncio.run(host.run()))
    thread.start()
    assert host.started.wait(60)
    yield f"http://127.0.0.1:{bound.getsockname()[1]}"
    host.stop()
    thread.join(60)
    assert not thread.is_alive()


@pytest.fixture
def small_ceilings(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a CPU can do is measured on a product of 256 x 256 and a copy of 16 MiB: quick, and far from exact."""
    monkeypatch.setattr(ceilings, "MATRIX", {"cpu": 256})
    monkeypatch.setattr(ceilings, "COPY_BYTES", {"cpu": 1 << 24})


@pytest.fixture
def scripted() -> Callable[[Script], AbstractContextManager[str]]:
    """Starts a server that answers as a script says; gives its URL."""

    @contextmanager
    def start(script: Script) -> Iterator[str]:
        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                status, events = script(body)
                self.send_response(status)
                self.end_headers()
                for event in events:
                    text = event if isinstance(event, str) else json.dumps(event)
                    self.wfile.write(f"data: {text}\n\n".encode() if status == 200 else text.encode())
                    self.wfile.flush()

            def log_message(self, *args: object) -> None:
                pass

        with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
            thread = threading.Thread(target=server.serve_forever, args=(0.01,))
            thread.start()
            yield f"http://127.0.0.1:{server.server_address[1]}"
            server.shutdown()
            thread.join()

    return start
