"""A client that goes away, or an abort by id, ends the work in every phase, exactly once."""

from __future__ import annotations

import json
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

LONG = {"max_tokens": 20000, "ignore_eos": True}
CHAT = {"messages": [{"role": "user", "content": "the"}], **LONG}


class Counted:
    """Counts the aborts that reach the engine."""

    def __init__(self, client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ids: list[str] = []
        self.seen = threading.Event()
        original = client.abort

        def abort(request_id: str) -> None:
            self.ids.append(request_id)
            original(request_id)
            self.seen.set()

        monkeypatch.setattr(client, "abort", abort)


@pytest.fixture
def aborts(server: Any, monkeypatch: pytest.MonkeyPatch) -> Counted:
    server.wait_idle()
    return Counted(server.state.frontend.client, monkeypatch)


def send(server: Any, path: str, body: dict[str, Any]) -> socket.socket:
    """A raw connection that has sent a request and has read nothing."""
    data = json.dumps(body).encode()
    connection = socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2])))
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    connection.sendall(head.encode() + data)
    return connection


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/generate"])
@pytest.mark.parametrize("stream", [True, False])
def test_closing_the_connection_aborts(server: Any, aborts: Counted, path: str, stream: bool) -> None:
    body: dict[str, Any] = CHAT if "chat" in path else {"prompt": "the", **LONG}
    if path == "/generate":
        body = {"text": "the", "sampling_params": {"max_new_tokens": 20000, "ignore_eos": True}}
    connection = send(server, path, {**body, "stream": stream})
    server.wait_running(1)
    connection.close()
    server.wait_idle()
    assert len(aborts.ids) == 1


def test_every_answer_of_a_batch_is_aborted_once(server: Any, aborts: Counted) -> None:
    connection = send(server, "/v1/completions", {"prompt": ["the", "and"], "n": 2, "stream": True, **LONG})
    server.wait_running(4)
    connection.close()
    server.wait_idle()
    assert len(aborts.ids) == len(set(aborts.ids)) == 4


def test_a_client_that_leaves_while_its_prompt_is_tokenized(
    server: Any, aborts: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    frontend = server.state.frontend
    entered, leave = threading.Event(), threading.Event()
    original = frontend.read_chat

    def slow(*args: Any, **kwargs: Any) -> Any:
        entered.set()
        leave.wait(10)
        return original(*args, **kwargs)

    monkeypatch.setattr(frontend, "read_chat", slow)
    connection = send(server, "/v1/chat/completions", CHAT)
    assert entered.wait(10)
    assert server.state.open_answers == 1
    connection.close()
    server.wait_idle()
    leave.set()
    assert server.state.frontend.client.stats().running == 0
    assert aborts.ids == []


def test_a_finished_answer_is_not_aborted(server: Any, aborts: Counted, http: httpx.Client) -> None:
    for stream in (False, True):
        assert (
            http.post("/v1/completions", json={"prompt": "the", "max_tokens": 3, "stream": stream}).status_code == 200
        )
    server.wait_idle()
    assert aborts.ids == []


@pytest.mark.parametrize(("path", "name"), [("/v1/chat/completions", "request_id"), ("/generate", "rid")])
def test_abort_by_id_ends_the_answer(server: Any, aborts: Counted, http: httpx.Client, path: str, name: str) -> None:
    body: dict[str, Any] = {**CHAT, "request_id": "mine"}
    if name == "rid":
        body = {"text": "the", "sampling_params": {"max_new_tokens": 20000, "ignore_eos": True}, "rid": "mine"}
    with ThreadPoolExecutor(1) as pool:
        pending = pool.submit(httpx.post, server.url + path, json=body, timeout=30)
        server.wait_running(1)
        twice = http.post(path, json=body)
        assert (twice.status_code, twice.json()["error"]["code"]) == (400, None)
        assert http.post("/v1/abort", json={name: "mine"}).json() == {"aborted": ["mine"]}
        answer = pending.result().json()
    if name == "rid":
        assert answer["meta_info"]["finish_reason"]["type"] == "abort"
        assert answer["meta_info"]["id"] == "mine"
    else:
        assert answer["choices"][0]["finish_reason"] == "abort"
        assert answer["id"] == "mine"
    server.wait_idle()
    assert len(aborts.ids) == 1
    assert http.post("/v1/abort", json={"id": "mine"}).json() == {"aborted": []}


def test_abort_all(server: Any, http: httpx.Client) -> None:
    with ThreadPoolExecutor(3) as pool:
        pending = [pool.submit(httpx.post, server.url + "/v1/chat/completions", json=CHAT, timeout=30) for _ in "abc"]
        server.wait_running(3)
        assert len(http.post("/v1/abort", json={"abort_all": True}).json()["aborted"]) == 3
        assert [one.result().json()["choices"][0]["finish_reason"] for one in pending] == ["abort"] * 3
    server.wait_idle()


def test_an_aborted_stream_ends_properly(server: Any, http: httpx.Client) -> None:
    with http.stream("POST", "/v1/chat/completions", json={**CHAT, "stream": True, "request_id": "s"}) as response:
        lines = response.iter_lines()
        next(lines)
        httpx.post(server.url + "/v1/abort", json={"id": "s"})
        rest = [line for line in lines if line]
    assert rest[-1] == "data: [DONE]"
    assert json.loads(rest[-2].removeprefix("data: "))["choices"][0]["finish_reason"] == "abort"
    server.wait_idle()
