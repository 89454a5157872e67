"""Hundreds of malformed requests: each is refused with a 4xx, and the server still answers correctly."""

from __future__ import annotations

import json
import random
import socket
from typing import Any

import httpx
import pytest

MESSAGES = [{"role": "user", "content": "the other"}]
VALID: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": MESSAGES, "max_tokens": 2},
    "/v1/completions": {"prompt": "the", "max_tokens": 2},
    "/generate": {"text": "the", "sampling_params": {"max_new_tokens": 2}},
    "/tokenize": {"prompt": "the"},
    "/detokenize": {"tokens": [5]},
    "/v1/abort": {"id": "nobody"},
}
SAMPLING = ["n", "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "stop",
            "frequency_penalty", "logit_bias", "seed", "max_tokens", "min_tokens", "stop_token_ids", "ignore_eos",
            "skip_special_tokens", "stream", "stream_options", "logprobs", "cache_salt", "priority"]  # fmt: skip
FIELDS: dict[str, list[str]] = {
    "/v1/chat/completions": [*SAMPLING, "messages", "top_logprobs", "max_completion_tokens", "chat_template_kwargs",
                             "add_generation_prompt", "continue_final_message", "model", "request_id"],
    "/v1/completions": [*SAMPLING, "prompt", "echo", "best_of", "prompt_logprobs", "model", "request_id"],
    "/generate": ["text", "sampling_params", "stream", "return_logprob", "top_logprobs_num", "logprob_start_len",
                  "rid"],
    "/tokenize": ["prompt", "add_special_tokens", "return_token_strs", "model"],
    "/detokenize": ["tokens", "model"],
    "/v1/abort": ["id", "abort_all"],
}  # fmt: skip
WRONG: list[Any] = [
    {"a": {"b": [1]}}, [[[]]], [{}], [None], [-1], [2**40], -(2**62), 2**63, -7.5, 1e300, "\x00", "\ud800", ["", None],
    [["x"]], {"-1": 5}, {"999999": 1}, "a" * 3000, [1.5], [[1], [None]], {"role": "user"}, [{"role": "user"}],
    [{"role": "user", "content": [{"type": "text", "text": {}}]}], [{"role": None, "content": None}],
]  # fmt: skip
RAW = [
    b"", b" ", b"null", b"[]", b"5", b'"text"', b"true", b"{", b"}", b'{"a"', b'{"prompt": NaN}',
    b'{"prompt": Infinity}',
    b'{"seed": -Infinity}', b'{"temperature": 1e999}', b'{"seed": ' + b"9" * 5000 + b"}", b"\xff\xfe{\x00}\x00",
    b'{"prompt": "\xff\xfe"}', b'{"prompt": "\xed\xa0\x80"}', b'{"prompt": "\\ud800"}', b"[" * 100_000,
    b'{"a":' * 50_000, b'{"prompt": ' + b"[" * 500 + b"]" * 500 + b"}", b"\x00" * 100, b"{'prompt': 'a'}",
    b'{"prompt": "a",}', b'{"prompt": "a"} trailing', b'{"\\ud800": 1}', b"\xef\xbb\xbf{}",
]  # fmt: skip
TYPES = ["text/plain", "application/xml", "multipart/form-data; boundary=x", "application/json5", "a" * 300, ""]
METHODS = ["GET", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "BREW"]
TAKEN = {"stop", "prompt", "text", "tokens", "id", "rid", "cache_salt", "request_id", "chat_template_kwargs", "seed"}
"""Fields that take one or the other value of WRONG (a long string, for example)."""

Request = tuple[str, str, bytes, str]
"""(method, path, body, content type)"""


def malformed(seed: int, count: int) -> list[Request]:
    rng = random.Random(seed)
    return [
        rng.choice([wrong_field, wrong_field, wrong_field, raw_body, wrong_head, truncated])(rng) for _ in range(count)
    ]


def wrong_field(rng: random.Random) -> Request:
    """A valid body in which one field has a value that no field takes, or that does not exist."""
    path = rng.choice(list(VALID))
    body = dict(VALID[path])
    name = rng.choice([*FIELDS[path], "no_such_field"])
    body[name] = rng.choice(WRONG)
    if body[name] == "a" * 3000 and name in ("text", "prompt", "stop"):
        body[name] = {}
    return "POST", path, json.dumps(body).encode(), "application/json"


def raw_body(rng: random.Random) -> Request:
    return "POST", rng.choice(list(VALID)), rng.choice(RAW), "application/json"


def wrong_head(rng: random.Random) -> Request:
    path = rng.choice(list(VALID))
    body = json.dumps(VALID[path]).encode()
    if rng.random() < 0.5:
        return rng.choice(METHODS), path, body, "application/json"
    if rng.random() < 0.3:
        return "POST", path + rng.choice(["/", "/x", "%00", "/../..", "?" * 50 + "/"]), b"{", "application/json"
    return "POST", path, body, rng.choice(TYPES)


def truncated(rng: random.Random) -> Request:
    path = rng.choice(list(VALID))
    whole = json.dumps(VALID[path]).encode()
    return "POST", path, whole[: rng.randrange(len(whole))], "application/json"


def accepts(request: Request) -> bool:
    """Values of the lists above that some field does take: the answer may then be 200."""
    method, path, content, _ = request
    if method != "POST" or path not in VALID:
        return False
    try:
        body = json.loads(content)
    except (ValueError, RecursionError):
        return False
    odd = [name for name, value in body.items() if VALID[path].get(name) != value]
    taken = {
        "stop",
        "prompt",
        "text",
        "tokens",
        "id",
        "rid",
        "cache_salt",
        "request_id",
        "chat_template_kwargs",
        "seed",
    }
    return len(odd) == 1 and odd[0] in taken and "no_such_field" not in odd


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_malformed_requests_are_refused_and_harm_nothing(server: Any, http: httpx.Client, seed: int) -> None:
    good = {"messages": MESSAGES, "max_tokens": 20, "temperature": 0, "logprobs": True}
    before = http.post("/v1/chat/completions", json=good).json()["choices"]
    for request in malformed(seed, 250):
        method, path, content, content_type = request
        headers = {"Content-Type": content_type}
        response = http.request(method, path, content=content, headers=headers, timeout=20)
        shown = f"{method} {path} {content[:200]!r} {content_type}: {response.status_code} {response.text[:300]}"
        assert 400 <= response.status_code < 500 or (response.status_code == 200 and accepts(request)), shown
        if response.status_code != 200:
            assert set(response.json()["error"]) == {"message", "type", "param", "code"}, shown
            assert "Traceback" not in response.text
    server.wait_idle()
    after = http.post("/v1/chat/completions", json=good).json()["choices"]
    assert after[0]["message"] == before[0]["message"]
    assert [one["logprob"] for one in after[0]["logprobs"]["content"]] == pytest.approx(
        [one["logprob"] for one in before[0]["logprobs"]["content"]], abs=1e-4
    )


BROKEN_HTTP = [
    b"\x00\x01\x02\r\n\r\n",
    b"GET\r\n\r\n",
    b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n",
    b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: abc\r\n\r\n",
    b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
    b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 100_000 + b"\r\n\r\n",
    b"GET / HTTP/9.9\r\n\r\n",
    # A body that ends before its declared length: there is nobody left to answer.
    b'POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{"p',
    b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    b'Transfer-Encoding: chunked\r\n\r\n5\r\n{"pro\r\n',
]


@pytest.mark.parametrize("raw", BROKEN_HTTP)
def test_broken_http_is_refused_or_closed(server: Any, http: httpx.Client, raw: bytes) -> None:
    with socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2])), timeout=10) as connection:
        connection.sendall(raw)
        connection.shutdown(socket.SHUT_WR)
        answer = b""
        try:
            while piece := connection.recv(65536):
                answer += piece
        except ConnectionResetError:
            pass
    # Odd but understandable GETs may be answered.
    assert answer == b"" or answer.split(b" ")[1].startswith(b"4") or (raw[:3] == b"GET" and b" 200 " in answer)
    assert http.get("/health").status_code == 200
    assert server.state.open_answers == 0
