"""Keys, sizes, queues, and the error object that every refusal carries."""

from __future__ import annotations

import base64
import logging
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from pymllm.config import ServerConfig
from pymllm.errors import ConfigError
from pymllm.server import json_body
from pymllm.server.serve import listener, warn_if_exposed

KEY = "sesame-1234"


@pytest.fixture(scope="module")
def guarded(start_server: Any) -> Iterator[Any]:
    limits = {
        "server.api_key": KEY,
        "server.max_body_bytes": 2000,
        "server.max_queued_requests": 1,
        "engine.max_running_requests": 1,
    }
    with start_server(limits) as running:
        yield running


def bearer(key: str) -> dict[str, bytes]:
    return {"Authorization": b"Bearer " + key.encode()}


@pytest.mark.parametrize("path", ["/", "/v1/models", "/info", "/metrics", "/v1/models/tiny", "/nothing", "/health/"])
def test_every_other_route_needs_the_key(guarded: Any, path: str) -> None:
    for headers in (
        {},
        bearer("wrong"),
        bearer("sésame"),
        {"Authorization": KEY.encode()},
        {"Authorization": b"Basic !!"},
    ):
        response = httpx.get(guarded.url + path, headers=headers)
        assert response.status_code == 401
        assert response.json()["error"]["code"] == "invalid_api_key"
        assert response.headers["www-authenticate"]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/generate", "/v1/abort", "/tokenize"])
def test_posting_needs_the_key(guarded: Any, path: str) -> None:
    assert httpx.post(guarded.url + path, json={}).status_code == 401
    assert httpx.post(guarded.url + path, json={}, headers=bearer(KEY)).status_code == 400


@pytest.mark.parametrize("path", ["/", "/v1/models", "/info", "/metrics", "/health", "/ready"])
def test_no_route_shows_the_key(guarded: Any, path: str) -> None:
    response = httpx.get(guarded.url + path, headers=bearer(KEY))
    assert response.status_code == 200
    assert KEY not in response.text + str(response.headers)


def test_health_and_readiness_need_no_key(guarded: Any) -> None:
    assert httpx.get(guarded.url + "/health").status_code == 200
    assert httpx.get(guarded.url + "/ready").status_code == 200


def test_a_browser_can_give_the_key_as_a_password(guarded: Any) -> None:
    challenge = httpx.get(guarded.url + "/").headers["www-authenticate"]
    assert challenge.startswith("Basic")
    credentials = base64.b64encode(f"anyone:{KEY}".encode()).decode()
    headers = {"Authorization": f"Basic {credentials}"}
    assert httpx.get(guarded.url + "/", headers=headers).status_code == 200
    assert httpx.get(guarded.url + "/info", headers=headers).status_code == 200


def test_a_body_above_the_limit_is_413(guarded: Any) -> None:
    body = b'{"prompt": "' + b"a" * 2000 + b'"}'

    def chunks() -> Iterator[bytes]:
        for start in range(0, len(body), 100):
            yield body[start : start + 100]

    for content in (body, chunks()):
        headers = {**bearer(KEY), "Content-Type": "application/json"}
        response = httpx.post(guarded.url + "/v1/completions", content=content, headers=headers)
        assert response.status_code == 413
        assert response.json()["error"]["code"] == "body_too_large"
        assert "2000" in response.json()["error"]["message"]


def test_a_full_queue_is_429_with_retry_after(guarded: Any) -> None:
    body = {"prompt": "the", "max_tokens": 150, "ignore_eos": True}

    def post(_: int) -> httpx.Response:
        return httpx.post(guarded.url + "/v1/completions", json=body, headers=bearer(KEY), timeout=60)

    with ThreadPoolExecutor(8) as pool:
        responses = list(pool.map(post, range(8)))
    statuses = [response.status_code for response in responses]
    assert set(statuses) == {200, 429}
    assert statuses.count(200) >= 2  # one runs, one may wait
    refused = responses[statuses.index(429)]
    assert int(refused.headers["retry-after"]) > 0
    assert refused.json()["error"]["type"] == "rate_limit_error"
    guarded.wait_idle()
    assert post(0).status_code == 200


def test_an_idle_server_takes_a_request_for_many_answers(guarded: Any) -> None:
    guarded.wait_idle()
    body = {"prompt": ["the"] * 5, "max_tokens": 2, "n": 2}
    response = httpx.post(guarded.url + "/v1/completions", json=body, headers=bearer(KEY), timeout=60)
    assert len(response.json()["choices"]) == 10


def test_unknown_routes_and_methods(http: httpx.Client) -> None:
    missing = http.get("/v1/nothing")
    assert missing.status_code == 404
    assert missing.json()["error"]["code"] == "unknown_url"
    wrong = http.get("/v1/chat/completions")
    assert wrong.status_code == 405
    assert wrong.headers["allow"] == "POST"
    assert wrong.json()["error"]["code"] == "method_not_allowed"


def test_only_json_is_taken(http: httpx.Client) -> None:
    for content_type in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""):
        response = http.post("/v1/completions", content=b'{"prompt": "a"}', headers={"Content-Type": content_type})
        assert response.status_code == 415
        assert "application/json" in response.json()["error"]["message"]


def test_a_large_body_is_refused_without_a_reset(http: httpx.Client, server: Any) -> None:
    body = b'{"prompt": "' + b"a" * server.state.config.max_body_bytes + b'"}'
    headers = {"Content-Type": "application/json"}
    for content in (body, iter([body[: len(body) // 2], body[len(body) // 2 :]])):
        assert http.post("/v1/completions", content=content, headers=headers).status_code == 413
    assert http.post("/v1/completions", json={"prompt": "a", "max_tokens": 1}).status_code == 200


def test_a_body_that_stops_coming_is_408(server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_body, "READ_SECONDS", 0.1)
    head = "POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{"
    with socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2])), timeout=10) as connection:
        connection.sendall(head.encode())
        answer = b"".join(iter(lambda: connection.recv(4096), b""))
    assert answer.startswith(b"HTTP/1.1 408")


def test_an_unexpected_failure_is_a_500_that_tells_nothing(
    server: Any, http: httpx.Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: Any, **__: Any) -> list[int]:
        raise RuntimeError("secret")

    monkeypatch.setattr(server.state.frontend, "encode", fail)
    response = http.post("/v1/completions", json={"prompt": "a"})
    assert response.status_code == 500
    assert response.json()["error"]["type"] == "internal_server_error"
    assert "secret" not in response.text
    assert "secret" in caplog.text
    assert server.state.open_answers == 0


def test_a_taken_port_is_an_error_of_one_sentence(server: Any) -> None:
    port = int(server.url.rpartition(":")[2])
    with pytest.raises(ConfigError, match=r"server\.port"):
        listener(ServerConfig(port=port))


@pytest.mark.parametrize(
    ("host", "key", "warns"),
    [("127.0.0.1", None, False), ("localhost", None, False), ("::1", None, False), ("0.0.0.0", None, True),
     ("::", None, True), ("example.org", None, True), ("0.0.0.0", "k", False)],
)  # fmt: skip
def test_an_open_door_is_warned_about(
    host: str, key: str | None, warns: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="pymllm"):
        warn_if_exposed(ServerConfig(host=host, api_key=key))
    assert ("server.api_key" in caplog.text) is warns
