"""An invalid or unsupported field is answered with a 400 that names it."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1}
TEXT: dict[str, Any] = {"prompt": "a", "max_tokens": 1}
NATIVE: dict[str, Any] = {"text": "a", "sampling_params": {"max_new_tokens": 1}}

CHAT_CASES: list[tuple[dict[str, Any], str]] = [
    ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
    ({"tool_choice": "auto"}, "tool_choice"),
    ({"functions": [{"name": "f"}]}, "functions"),
    ({"response_format": {"type": "json_object"}}, "response_format"),
    ({"audio": {"voice": "alloy", "format": "wav"}}, "audio"),
    ({"modalities": ["text", "audio"]}, "modalities"),
    ({"web_search_options": {}}, "web_search_options"),
    ({"prediction": {"type": "content", "content": "x"}}, "prediction"),
    ({"reasoning_effort": "high"}, "reasoning_effort"),
    ({"temprature": 1}, "temprature"),
    ({"temperature": -1}, "temperature"),
    ({"temperature": "hot"}, "temperature"),
    ({"temperature": True}, "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"n": 0}, "n"),
    ({"n": 1.0}, "n"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": None, "max_completion_tokens": 0}, "max_completion_tokens"),
    ({"max_completion_tokens": 2}, "max_completion_tokens"),
    ({"max_tokens": 10**6}, "max_tokens"),
    ({"logprobs": 3}, "logprobs"),
    ({"top_logprobs": 3}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": 1000}, "top_logprobs"),
    ({"logit_bias": {"abc": 1}}, "logit_bias"),
    ({"logit_bias": {"5": 101}}, "logit_bias"),
    ({"logit_bias": {"100000": 1}}, "logit_bias"),
    ({"logit_bias": [1]}, "logit_bias"),
    ({"stop": [""]}, "stop"),
    ({"stop": 7}, "stop"),
    ({"stop": False}, "stop"),
    ({"stop_token_ids": [-1]}, "stop_token_ids"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"stream": True, "stream_options": {"include_obfuscation": True}}, "stream_options.include_obfuscation"),
    ({"stream": "yes"}, "stream"),
    ({"seed": 2**64 - 2**63 + 0.5}, "seed"),
    ({"cache_salt": ""}, "cache_salt"),
    ({"priority": "high"}, "priority"),
    ({"request_id": "a\nb"}, "request_id"),
    ({"add_generation_prompt": True, "continue_final_message": True}, "continue_final_message"),
    ({"chat_template_kwargs": {"tokenize": True}}, "chat_template_kwargs.tokenize"),
    ({"messages": []}, "messages"),
    ({"messages": None}, "messages"),
    ({"messages": "hello"}, "messages"),
    ({"messages": [{"role": "king", "content": "a"}]}, "messages[0].role"),
    ({"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": "a", "colour": 1}]}, "messages[0].colour"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0].type"),
    ({"messages": [{"role": "user", "content": [{"type": "text", "text": 1}]}]}, "messages[0].content[0].text"),
    ({"messages": [{"role": "assistant", "content": "a", "tool_calls": [{}]}]}, "messages[0].tool_calls"),
]

TEXT_CASES: list[tuple[dict[str, Any], str]] = [
    ({"prompt": None}, "prompt"),
    ({"prompt": ""}, "prompt"),
    ({"prompt": []}, "prompt"),
    ({"prompt": [[]]}, "prompt[0]"),
    ({"prompt": ["a", 1]}, "prompt[1]"),
    ({"prompt": [1, "a"]}, "prompt"),
    ({"prompt": [[1], "a"]}, "prompt[1]"),
    ({"prompt": [1.5]}, "prompt"),
    ({"prompt": [-1]}, "prompt"),
    ({"prompt": [True]}, "prompt"),
    ({"prompt": [100000]}, "prompt"),
    ({"prompt": ["a"] * 4097}, "prompt"),
    ({"suffix": "x"}, "suffix"),
    ({"best_of": 2}, "best_of"),
    ({"logprobs": True}, "logprobs"),
    ({"logprobs": 101}, "logprobs"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"min_tokens": 5}, "min_tokens"),
    ({"max_tokens": None, "min_tokens": 40000}, "min_tokens"),
    ({"messages": []}, "messages"),
]

NATIVE_CASES: list[tuple[dict[str, Any], str]] = [
    ({"text": None}, "text"),
    ({"input_ids": [1]}, "text"),
    ({"text": [1]}, "text"),
    ({"text": None, "input_ids": "abc"}, "input_ids"),
    ({"text": None, "input_ids": ["abc"]}, "input_ids"),
    ({"image_data": "x"}, "image_data"),
    ({"sampling_params": {"max_new_tokens": -1}}, "sampling_params.max_new_tokens"),
    ({"sampling_params": {"temperature": "x"}}, "sampling_params.temperature"),
    ({"sampling_params": {"max_tokens": 4}}, "sampling_params.max_tokens"),
    ({"sampling_params": {"regex": "a*"}}, "sampling_params.regex"),
    ({"sampling_params": [{}, {}]}, "sampling_params"),
    ({"sampling_params": [{"top_p": 2}]}, "sampling_params[0].top_p"),
    ({"sampling_params": 3}, "sampling_params"),
    ({"top_logprobs_num": 3}, "top_logprobs_num"),
    ({"return_logprob": True, "top_logprobs_num": 1000}, "top_logprobs_num"),
    ({"rid": ""}, "rid"),
]

OTHER_CASES: list[tuple[str, dict[str, Any], str]] = [
    ("/tokenize", {}, "prompt"),
    ("/tokenize", {"prompt": "a", "messages": CHAT["messages"]}, "prompt"),
    ("/tokenize", {"prompt": "a", "continue_final_message": True}, "continue_final_message"),
    ("/tokenize", {"messages": CHAT["messages"], "add_special_tokens": True}, "add_special_tokens"),
    ("/detokenize", {"tokens": "abc"}, "tokens"),
    ("/detokenize", {"tokens": [100000]}, "tokens"),
    ("/detokenize", {}, "tokens"),
    ("/v1/abort", {}, "id"),
    ("/v1/abort", {"id": 5}, "id"),
]

CASES = [
    *[("/v1/chat/completions", {**CHAT, **change}, field) for change, field in CHAT_CASES],
    *[("/v1/completions", {**TEXT, **change}, field) for change, field in TEXT_CASES],
    *[("/generate", {**NATIVE, **change}, field) for change, field in NATIVE_CASES],
    *OTHER_CASES,
]


@pytest.mark.parametrize(("path", "body", "field"), CASES)
def test_the_field_is_named(http: httpx.Client, path: str, body: dict[str, Any], field: str) -> None:
    response = http.post(path, json=body)
    error = response.json()["error"]
    assert response.status_code == 400, error
    assert error["param"] == field
    assert error["type"] == "invalid_request_error"
    assert error["message"]
    assert set(error) == {"message", "type", "param", "code"}


def test_null_means_not_given(http: httpx.Client) -> None:
    names = ["temperature", "top_p", "n", "stop", "seed", "logprobs", "top_logprobs", "tools", "tool_choice", "user",
             "response_format", "stream", "stream_options", "logit_bias", "max_completion_tokens", "model", "priority",
             "presence_penalty", "frequency_penalty", "min_tokens", "skip_special_tokens", "audio"]  # fmt: skip
    assert http.post("/v1/chat/completions", json={**CHAT, **dict.fromkeys(names)}).status_code == 200


def test_values_that_ask_for_nothing_are_accepted(http: httpx.Client) -> None:
    body = {**CHAT, "tools": [], "tool_choice": "none", "functions": [], "response_format": {"type": "text"},
            "modalities": ["text"], "max_completion_tokens": 1, "stop": []}  # fmt: skip
    assert http.post("/v1/chat/completions", json=body).status_code == 200
    body = {**TEXT, "n": 2, "best_of": 2, "suffix": ""}
    assert http.post("/v1/completions", json=body).status_code == 200


def test_a_prompt_that_cannot_fit_is_refused_with_the_numbers(http: httpx.Client) -> None:
    response = http.post("/v1/completions", json={"prompt": [5] * 40000, "max_tokens": 1})
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["param"] == "prompt"
    assert "40000" in error["message"]
    assert "32768" in error["message"]


def test_a_default_length_is_cut_to_the_context(start_server: Any) -> None:
    prompt = [5] * 61
    with start_server({"model.max_context": 64}) as server, httpx.Client(base_url=server.url, timeout=30) as http:
        answer = http.post("/v1/completions", json={"prompt": prompt, "ignore_eos": True}).json()
        assert answer["usage"]["completion_tokens"] == 3
        answer = http.post("/generate", json={"input_ids": prompt, "sampling_params": {"ignore_eos": True}}).json()
        assert answer["meta_info"]["completion_tokens"] == 3
        refused = http.post("/v1/completions", json={"prompt": prompt, "max_tokens": 16})
        assert refused.json()["error"]["param"] == "max_tokens"
