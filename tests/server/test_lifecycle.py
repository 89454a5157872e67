"""Start, drain, a second signal, and an engine that dies."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

LONG = {"prompt": "the", "max_tokens": 20000, "ignore_eos": True}
GREEDY = {"prompt": "the", "max_tokens": 8, "temperature": 0}


def complete(url: str, body: dict[str, Any]) -> httpx.Response:
    return httpx.post(url + "/v1/completions", json=body, timeout=60)


def until_not_ready(client: httpx.Client) -> None:
    while client.get("/ready").status_code == 200:
        pass


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as threads:
        yield threads


def test_sigterm_drains_then_aborts_and_exits_with_0(settings: dict[str, Any], pool: ThreadPoolExecutor) -> None:
    words = {**settings, "engine.process": "false", "log.level": "info", "server.drain_seconds": 0.5}
    command = [sys.executable, "-m", "pymllm", "run", *(f"{key}={value}" for key, value in words.items())]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stderr is not None
        try:
            log = ""
            while (served := re.search(r"serving 'tiny' at (http://\S+)", log)) is None:
                line = process.stderr.readline()
                assert line, log
                log += line
            with httpx.Client(base_url=served[1]) as client:
                pending = pool.submit(complete, served[1], LONG)
                while client.get("/info").json()["stats"]["running"] == 0:
                    pass
                process.send_signal(signal.SIGTERM)
                until_not_ready(client)
                assert client.get("/health").status_code == 200
                refused = client.post("/v1/completions", json=GREEDY)
                assert (refused.status_code, refused.json()["error"]["code"]) == (503, "shutting_down")
                answer = pending.result().json()
            assert answer["choices"][0]["finish_reason"] == "abort"
            assert answer["usage"]["completion_tokens"] > 0
            log += process.stderr.read()
            assert process.wait(30) == 0
            assert "Traceback" not in log
        finally:
            process.kill()


def test_what_is_open_may_finish(start_server: Any, pool: ThreadPoolExecutor) -> None:
    with start_server({"server.drain_seconds": 60.0}) as server:
        body = {**LONG, "max_tokens": 400}
        whole = pool.submit(complete, server.url, body)
        streamed = pool.submit(complete, server.url, {**body, "stream": True})
        server.wait_running(2)
        server.host.stop()
        assert whole.result().json()["choices"][0]["finish_reason"] == "length"
        assert streamed.result().text.endswith("data: [DONE]\n\n")
        assert server.wait() == 0


def test_a_second_signal_ends_at_once(start_server: Any, pool: ThreadPoolExecutor) -> None:
    with start_server({"server.drain_seconds": 600.0}) as server:
        pending = pool.submit(complete, server.url, LONG)
        server.wait_running(1)
        server.host.stop()
        server.host.stop()
        assert server.wait() == 128 + signal.SIGTERM
        assert pending.exception() is not None or pending.result().status_code in (200, 503)


@pytest.mark.parametrize("restart", [False, True])
def test_an_engine_process_that_dies(start_server: Any, pool: ThreadPoolExecutor, restart: bool) -> None:
    with start_server({"engine.process": True, "engine.restart": restart}) as server:
        before = complete(server.url, GREEDY).json()["choices"]
        streamed = pool.submit(complete, server.url, {**LONG, "stream": True})
        whole = pool.submit(complete, server.url, LONG)
        server.wait_running(2)
        client = server.state.frontend.client
        os.kill(client._process.pid, signal.SIGKILL)
        assert '"error"' in streamed.result().text.rstrip().rpartition("\n")[2]
        assert whole.result().status_code == 503
        assert whole.result().json()["error"]["code"] == "engine_dead"
        assert server.state.open_answers == 0
        if not restart:
            assert server.wait() == 1
            return
        with httpx.Client(base_url=server.url) as http:
            while http.get("/ready").status_code != 200:
                assert http.get("/health").status_code == 200
        assert server.state.frontend.client is not client
        assert complete(server.url, GREEDY).json()["choices"] == before
        server.host.stop()
        assert server.wait() == 0
