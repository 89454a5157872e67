"""``pymllm run`` as a process: start, drain, second signal, and an engine that dies."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

LONG = {"prompt": "the", "max_tokens": 20000, "ignore_eos": True}


class Process:
    """``pymllm run`` on a free port; its log lines are collected."""

    def __init__(self, settings: dict[str, Any]) -> None:
        words = [f"{key}={str(value).lower() if isinstance(value, bool) else value}" for key, value in settings.items()]
        self.popen = subprocess.Popen(
            [sys.executable, "-m", "pymllm", "run", *words],
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        self.lines: list[str] = []
        self._served = threading.Event()
        self._restarted = threading.Event()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        assert self._served.wait(60), self.log
        self.url = re.search(r"http://\S+", self.log)[0]  # type: ignore[index]

    @property
    def log(self) -> str:
        return "".join(self.lines)

    def _read(self) -> None:
        assert self.popen.stderr is not None
        for line in self.popen.stderr:
            self.lines.append(line)
            if "serving 'tiny'" in line:
                self._served.set()
            if "runs again" in line:
                self._restarted.set()
        self._served.set()

    def wait_restarted(self) -> None:
        assert self._restarted.wait(60), self.log

    def engine_pid(self) -> int:
        return int(subprocess.check_output(["pgrep", "-P", str(self.popen.pid), "-f", "engine.worker"], text=True))

    def stats(self) -> dict[str, Any]:
        return httpx.get(self.url + "/info").json()["stats"]

    def wait_running(self) -> None:
        for _ in range(10_000):
            if self.stats()["running"]:
                return
        pytest.fail("nothing runs")

    def wait(self) -> int:
        return self.popen.wait(30)

    def close(self) -> None:
        if self.popen.poll() is None:
            self.popen.kill()
            self.popen.wait()
        self._reader.join()
        assert self.popen.stderr is not None
        self.popen.stderr.close()


@contextmanager
def running(settings: dict[str, Any], **more: Any) -> Iterator[Process]:
    process = Process({**settings, "log.level": "info", **{key.replace("__", "."): v for key, v in more.items()}})
    try:
        yield process
    finally:
        process.close()


def test_sigterm_drains_then_aborts(settings: dict[str, Any]) -> None:
    with running(settings, server__drain_seconds=1.0) as process, ThreadPoolExecutor(2) as pool:
        keep = httpx.Client(base_url=process.url)
        long = pool.submit(httpx.post, process.url + "/v1/completions", json=LONG, timeout=60)
        process.wait_running()
        process.popen.send_signal(signal.SIGTERM)
        while keep.get("/ready").status_code == 200:
            pass
        assert keep.get("/health").status_code == 200
        refused = keep.post("/v1/completions", json=LONG)
        assert refused.status_code == 503
        assert refused.json()["error"]["code"] == "shutting_down"
        assert long.result().json()["choices"][0]["finish_reason"] == "abort"
        assert long.result().json()["usage"]["completion_tokens"] > 0
        assert process.wait() == 0
        assert "aborting 1 answers" in process.log


def test_sigint_waits_for_what_is_open(settings: dict[str, Any]) -> None:
    with running(settings, server__drain_seconds=60.0) as process, ThreadPoolExecutor(1) as pool:
        body = {**LONG, "max_tokens": 1500}
        pending = pool.submit(httpx.post, process.url + "/v1/completions", json=body, timeout=60)
        process.wait_running()
        process.popen.send_signal(signal.SIGINT)
        assert pending.result().json()["choices"][0]["finish_reason"] == "length"
        assert process.wait() == 0
        assert "Traceback" not in process.log


def test_a_second_signal_ends_at_once(settings: dict[str, Any]) -> None:
    with running(settings, server__drain_seconds=600.0, engine__process=True) as process, ThreadPoolExecutor(1) as pool:
        pending = pool.submit(httpx.post, process.url + "/v1/completions", json=LONG, timeout=60)
        process.wait_running()
        process.popen.send_signal(signal.SIGINT)
        while httpx.get(process.url + "/ready").status_code == 200:
            pass
        process.popen.send_signal(signal.SIGINT)
        assert process.wait() == 128 + signal.SIGINT
        assert pending.exception() is not None or pending.result().status_code in (200, 503)


@pytest.mark.parametrize("restart", [False, True])
def test_an_engine_that_dies(settings: dict[str, Any], restart: bool) -> None:
    with running(settings, engine__process=True, engine__restart=restart) as process, ThreadPoolExecutor(1) as pool:
        greedy = {"prompt": "the", "max_tokens": 8, "temperature": 0}
        before = httpx.post(process.url + "/v1/completions", json=greedy).json()["choices"]
        with httpx.stream("POST", process.url + "/v1/completions", json={**LONG, "stream": True}) as stream:
            lines = stream.iter_lines()
            next(lines)
            pending = pool.submit(httpx.post, process.url + "/v1/completions", json=LONG, timeout=60)
            while process.stats()["running"] < 2:
                pass
            os.kill(process.engine_pid(), signal.SIGKILL)
            said = [line for line in lines if line]
        assert '"error"' in said[-1]
        assert pending.result().status_code == 503
        assert pending.result().json()["error"]["code"] == "engine_dead"
        if not restart:
            assert process.wait() == 1
            assert "the engine has died" in process.log
            return
        process.wait_restarted()
        assert httpx.get(process.url + "/ready").status_code == 200
        assert httpx.post(process.url + "/v1/completions", json=greedy).json()["choices"] == before
        process.popen.send_signal(signal.SIGTERM)
        assert process.wait() == 0


def test_a_missing_model_is_one_line_and_status_2(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pymllm", "run", f"model.path={tmp_path}/none", "server.port=0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
