"""Whatever is streamed, put together, is the answer that is not streamed."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

CHAT = {"messages": [{"role": "user", "content": "é the 🙂"}]}


def stream(http: httpx.Client, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    """The events, after checking that they are framed as server-sent events and end with [DONE]."""
    with http.stream("POST", path, json={**body, "stream": True}) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        raw = response.read().decode()
    assert raw.endswith("data: [DONE]\n\n")
    events = raw.removesuffix("\n\n").split("\n\n")
    assert all(event.startswith("data: ") and "\n" not in event for event in events)
    return [json.loads(event.removeprefix("data: ")) for event in events[:-1]]


def assert_same(one: Any, other: Any) -> None:
    """Equal, but for the last bits of numbers: two runs need not be batched alike."""
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            assert_same(one[key], other[key])
    elif isinstance(one, list):
        assert len(one) == len(other)
        for left, right in zip(one, other):
            assert_same(left, right)
    elif isinstance(one, float):
        assert one == pytest.approx(other, abs=1e-4)
    else:
        assert one == other


@pytest.mark.parametrize("skip_special", [True, False])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_chat_with_logprobs_and_several_answers(http: httpx.Client, seed: int, skip_special: bool) -> None:
    # At temperature 2 the tiny model writes broken UTF-8 and special tokens: the hard case.
    body = {**CHAT, "max_tokens": 60, "seed": seed, "temperature": 2.0, "n": 2, "logprobs": True, "top_logprobs": 1,
            "ignore_eos": True, "skip_special_tokens": skip_special}  # fmt: skip
    whole = http.post("/v1/chat/completions", json=body).json()
    events = stream(http, "/v1/chat/completions", body)
    for choice in whole["choices"]:
        mine = [event["choices"][0] for event in events if event["choices"][0]["index"] == choice["index"]]
        assert "".join(one["delta"].get("content", "") for one in mine) == choice["message"]["content"]
        content = [entry for one in mine if one["logprobs"] for entry in one["logprobs"]["content"]]
        assert_same(content, choice["logprobs"]["content"])
        assert len(content) == 60
        assert [one["finish_reason"] for one in mine if one["finish_reason"]] == [choice["finish_reason"]]


def test_completions_with_echo_logprobs_and_many_prompts(http: httpx.Client) -> None:
    body = {"prompt": ["the é", "and 🙂"], "max_tokens": 30, "seed": 3, "temperature": 2.0, "n": 2, "logprobs": 2,
            "echo": True, "stop": ["e"], "stream_options": None}  # fmt: skip
    whole = http.post("/v1/completions", json=body).json()
    events = stream(http, "/v1/completions", {**body, "stream_options": {"include_usage": True}})
    assert [choice["index"] for choice in whole["choices"]] == [0, 1, 2, 3]
    for choice in whole["choices"]:
        mine = [event["choices"][0] for event in events[:-1] if event["choices"][0]["index"] == choice["index"]]
        assert "".join(one["text"] for one in mine) == choice["text"]
        for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
            assert_same([value for one in mine for value in one["logprobs"][name]], choice["logprobs"][name])
        assert [one["finish_reason"] for one in mine if one["finish_reason"]] == [choice["finish_reason"]]
    assert events[-1]["choices"] == []
    usage = {key: whole["usage"][key] for key in ("prompt_tokens", "completion_tokens", "total_tokens")}
    assert {key: events[-1]["usage"][key] for key in usage} == usage


@pytest.mark.parametrize("text", ["the", ["the", "and"]])
def test_generate_streams_growing_answers(http: httpx.Client, text: Any) -> None:
    body = {"text": text, "sampling_params": {"max_new_tokens": 25, "temperature": 2.0, "sampling_seed": 4, "n": 1}}
    whole = http.post("/generate", json=body).json()
    last: dict[int, dict[str, Any]] = {}
    for event in stream(http, "/generate", body):
        index = event.pop("index", 0)
        if index in last:
            assert event["text"].startswith(last[index]["text"])
        last[index] = event
    for index, answer in enumerate(whole if isinstance(text, list) else [whole]):
        assert last[index]["text"] == answer["text"]
        assert last[index]["output_ids"] == answer["output_ids"]
        assert last[index]["meta_info"]["finish_reason"] == answer["meta_info"]["finish_reason"]


def test_a_stop_string_never_shows_and_is_named(http: httpx.Client) -> None:
    # Learn what the model says greedily, then stop at a piece of it.
    body = {"prompt": "the", "max_tokens": 40, "temperature": 0, "ignore_eos": True}
    said = http.post("/v1/completions", json=body).json()["choices"][0]["text"]
    stop = said[10:13]
    cut = said[: said.index(stop)]
    choice = http.post("/v1/completions", json={**body, "stop": [stop]}).json()["choices"][0]
    assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == (cut, "stop", stop)
    events = stream(http, "/v1/completions", {**body, "stop": stop})
    assert "".join(event["choices"][0]["text"] for event in events) == cut
    kept = http.post("/v1/completions", json={**body, "stop": stop, "include_stop_str_in_output": True}).json()
    assert kept["choices"][0]["text"] == cut + stop
