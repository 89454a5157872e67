"""POST /start_profile and /stop_profile: a trace of a server at work, for whoever may, and clear refusals."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

KEY = "secret"


def complete(server: Any, count: int) -> dict[str, Any]:
    body = {"prompt": [5, 6, 7], "max_tokens": count, "temperature": 0, "ignore_eos": True}
    return httpx.post(f"{server.url}/v1/completions", json=body, timeout=60).json()


def embeddings(path: str) -> int:
    """Steps in a trace: the model looks embeddings up once in each."""
    with gzip.open(path) as file:
        return sum(event.get("name") == "aten::embedding" for event in json.load(file)["traceEvents"])


def error(answer: httpx.Response) -> str:
    return str(answer.json()["error"]["message"])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where traces go that name no folder."""
    return tmp_path_factory.mktemp("traces") / "mine"


@pytest.fixture(scope="module", params=[False, True], ids=["thread", "process"])
def profiled(start_server: Any, folder: Path, request: pytest.FixtureRequest) -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYMLLM_TORCH_PROFILER_DIR", str(folder))
        with start_server({"engine.process": request.param}) as server:
            yield server


@pytest.fixture
def client(profiled: Any) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=profiled.url, timeout=60) as client:
        yield client


def test_a_server_under_load_is_traced_and_answers_everybody(
    profiled: Any, client: httpx.Client, tmp_path: Path
) -> None:
    alone = complete(profiled, 50)["choices"][0]["text"]
    with ThreadPoolExecutor(8) as pool:
        answers = [pool.submit(complete, profiled, 50) for _ in range(24)]
        started = client.post("/start_profile", json={"output_dir": str(tmp_path), "num_steps": 10})
        assert started.status_code == 200
        assert started.json()["num_steps"] == 10
        texts = [answer.result()["choices"][0]["text"] for answer in answers]
    assert texts == [alone] * 24
    assert embeddings(started.json()["trace"]) == 10
    again = client.post("/stop_profile", json={})
    assert again.status_code == 409
    assert started.json()["trace"] in error(again)


def test_it_runs_until_it_is_stopped(profiled: Any, client: httpx.Client, folder: Path) -> None:
    trace = client.post("/start_profile", json={}).json()["trace"]
    second = client.post("/start_profile", json={})
    assert (second.status_code, second.json()["error"]["code"]) == (409, "conflict")
    assert "running already" in error(second)
    complete(profiled, 12)
    stopped = client.post("/stop_profile", json={})
    assert stopped.status_code == 200
    assert stopped.json() == {"trace": trace, "num_steps": embeddings(trace)}
    assert Path(trace).parent == folder


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"num_steps": 0}, "num_steps"),
        ({"output_dir": ""}, "output_dir"),
        ({"output_dir": "/dev/null/x"}, "traces cannot be written to '/dev/null/x'"),
        ({"record_shapes": True}, "record_shapes is not supported"),
        ({"steps": 3}, "unknown field 'steps'"),
    ],
)
def test_what_is_wrong_is_named(http: httpx.Client, body: dict[str, Any], message: str) -> None:
    answer = http.post("/start_profile", json=body)
    assert answer.status_code == 400
    assert message in error(answer)
    stopped = http.post("/stop_profile", json={})
    assert (stopped.status_code, error(stopped)) == (409, "no profile is running")


def test_nobody_profiles_without_the_key(start_server: Any, tmp_path: Path) -> None:
    settings = {"server.api_key": KEY, "server.host": "0.0.0.0"}
    with start_server(settings) as server, httpx.Client(base_url=server.url, timeout=60) as http:
        for route in ("/start_profile", "/stop_profile"):
            assert http.post(route, json={}).status_code == 401
        http.headers["Authorization"] = f"Bearer {KEY}"
        assert http.post("/start_profile", json={"output_dir": str(tmp_path)}).status_code == 200
        assert http.post("/stop_profile", json={}).status_code == 200


def test_strangers_do_not_choose_the_folder(start_server: Any, tmp_path: Path) -> None:
    with start_server({"server.host": "0.0.0.0"}) as server:
        answer = httpx.post(f"{server.url}/start_profile", json={"output_dir": str(tmp_path)})
        assert answer.status_code == 403
        assert "set server.api_key" in error(answer)
    assert not list(tmp_path.iterdir())
