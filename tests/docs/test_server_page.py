"""docs/server.md and the README name the routes, fields, metrics and errors that the server really has."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from pydantic import BaseModel

from pymllm.server.protocol.chat import ChatRequest
from pymllm.server.protocol.completions import CompletionRequest
from pymllm.server.protocol.native import AbortRequest, GenerateRequest, NativeSampling
from pymllm.server.protocol.sampling import MAX_ANSWERS
from pymllm.server.protocol.tokenize import DetokenizeRequest, TokenizeRequest

PAGE = "docs/server.md"
Rows = Callable[[str], list[list[str]]]


def names(text: str) -> set[str]:
    return set(re.findall(r"`([^`]+)`", text))


@pytest.mark.parametrize("page", [PAGE, "README.md"])
def test_the_routes_are_the_servers(page: str, rows: Rows, served: Any) -> None:
    listed = {name for row in rows(page) for name in names(row[0]) if re.match("(GET|POST) /", name)}
    assert listed == {route.replace(":path", "") for route in served.routes}
    for route in listed:
        method, path = route.split()
        url = served.url + path.replace("{name}", "default")
        answer = httpx.request(method, url, json={"no such field": 0} if method == "POST" else None)
        assert answer.status_code == (200 if method == "GET" else 400), route


def fields_of(*models: type[BaseModel]) -> set[str]:
    return {name for model in models for name in model.model_fields}


def test_the_accepted_fields_are_the_protocols(rows: Rows) -> None:
    found = {row[0].replace("`", ""): names(row[1]) for row in rows(PAGE) if len(row) == 2}
    both = found["both completions"]
    assert both == fields_of(ChatRequest) & fields_of(CompletionRequest)
    assert found["chat completions"] == fields_of(ChatRequest) - both
    assert found["completions"] - {"n"} == fields_of(CompletionRequest) - both
    assert found["/generate"] == fields_of(GenerateRequest)
    assert found["its sampling_params"] == fields_of(NativeSampling)
    assert found["/tokenize"] == fields_of(TokenizeRequest)
    assert found["/detokenize"] == fields_of(DetokenizeRequest)
    assert found["/v1/abort"] == fields_of(AbortRequest)


def test_the_ignored_and_the_refused_fields_are_the_protocols(root: Path) -> None:
    text = (root / PAGE).read_text()
    ignored = re.search(r"\*\*Ignored\*\*(.*?)\n- ", text, re.DOTALL)
    refused = re.search(r"\*\*Refused by name\*\*(.*?)\n- ", text, re.DOTALL)
    assert ignored
    assert refused
    assert names(ignored[1]) == set(ChatRequest.informative)
    listed = {*ChatRequest.unsupported, *CompletionRequest.unsupported, *GenerateRequest.unsupported}
    assert names(refused[1]) - {"/generate"} == listed
    assert f"at most {MAX_ANSWERS}" in text


def test_the_metrics_are_the_servers(rows: Rows, server: str) -> None:
    listed = {name for row in rows(PAGE) for name in names(row[0]) if name.startswith("pymllm_")}
    httpx.get(f"{server}/nowhere")  # so that an error has been counted
    families = text_string_to_metric_families(httpx.get(f"{server}/metrics").text)
    real = set()
    for family in families:
        sample = family.samples[0]
        labels = "" if family.type == "histogram" else ",".join(sorted(sample.labels))
        name = family.name if family.type == "histogram" else sample.name
        real.add(name + (f"{{{labels}}}" if labels else ""))
    assert listed == real


def test_the_error_example_is_what_the_server_answers(blocks: Callable[..., list[str]], server: str) -> None:
    body = {"messages": [{"role": "user", "content": "x"}], "tools": [{"type": "function"}]}
    answer = httpx.post(f"{server}/v1/chat/completions", json=body)
    assert answer.status_code == 400
    assert [answer.text] == [block.strip().replace(": ", ":").replace(", ", ",") for block in blocks(PAGE, "json")]
