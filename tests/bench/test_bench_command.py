"""``pymllm bench`` as it is typed; what it writes is what its modules document."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from pymllm.bench import latency, results, serve, throughput
from pymllm.cli import main
from result_files import assert_documented, lines

Scripted = Callable[[Callable[[dict[str, Any]], tuple[int, list[Any]]]], AbstractContextManager[str]]


@pytest.fixture
def model(settings: dict[str, Any]) -> list[str]:
    return [f"{key}={settings[key]}" for key in ("model.path", "model.dtype", "engine.max_total_tokens", "log.level")]


def test_throughput(model: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "r.jsonl"
    options = ["--num-prompts", "5", "--input-len", "20", "30", "--output-len", "2", "4", "--repeats", "2"]
    command = ["bench", "throughput", *model, *options, "--result-filename", str(file), "--run-name", "one"]
    assert main(command) == 0
    assert main([*command, "cache.plugin=chunk"]) == 0
    first, second = lines(file)
    assert_documented(first, results, throughput)
    assert (first["benchmark"], first["run_name"], first["num_prompts"]) == ("throughput", "one", 5)
    assert first["input_len"] == {"least": 20, "most": 30}
    assert first["engine"]["dtype"] == "float32"
    assert first["engine"]["plugins"]["cache"].startswith("radix")
    assert second["engine"]["plugins"]["cache"].startswith("chunk")
    assert first["output_tokens"] == second["output_tokens"]
    assert f"{first['output_tok_s']['median']:,.2f}" in capsys.readouterr().out


def test_latency(model: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "r.jsonl"
    options = ["--batch-size", "1", "2", "--input-len", "20", "--output-len", "3", "--repeats", "2"]
    assert main(["bench", "latency", *model, *options, "--result-filename", str(file)]) == 0
    first, second = lines(file)
    assert_documented(first, results, latency)
    assert (first["batch_size"], second["batch_size"]) == (1, 2)
    assert first["temperature"] == 0.0
    assert len(capsys.readouterr().out.splitlines()) == 6  # system, repeats, empty, title, two settings


def test_serve(server_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, each = tmp_path / "r.jsonl", tmp_path / "each.jsonl"
    load = ["--num-requests", "12", "--request-rate", "100", "--vocab-size", "288"]
    sizes = ["--input-len", "40", "50", "--output-len", "3", "6", "--slo", "e2e=100"]
    command = ["bench", "serve", "--base-url", f"{server_url}/v1", *load, *sizes]
    assert main([*command, "--result-filename", str(file), "--per-request", str(each)]) == 0
    (record,) = lines(file)
    assert_documented(record, results, serve)
    assert (record["completed"], record["failed"], record["cached_tokens"]) == (12, 0, 0)
    requests = lines(each)
    assert [request["index"] for request in requests] == list(range(12))
    assert all(40 <= request["prompt_tokens"] <= 50 and 3 <= request["output_tokens"] <= 6 for request in requests)
    assert record["output_tokens"] == sum(request["output_tokens"] for request in requests)
    assert record["duration_s"] >= max(request["finished"] for request in requests) - 1e-9
    assert record["goodput_requests_s"] == record["requests_s"]
    assert record["server"]["engine"]["dtype"] == "float32"
    assert main(["bench", "serve", server_url, *load, *sizes]) == 0
    assert "came from the server's prefix cache" in capsys.readouterr().err


def test_serve_under_several_loads(server_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, each = tmp_path / "r.jsonl", tmp_path / "each.jsonl"
    sizes = ["--num-requests", "6", "--vocab-size", "288", "--input-len", "41", "50", "--output-len", "3", "6"]
    kept = ["--result-filename", str(file), "--per-request", str(each), "--seed", "5"]
    assert main(["bench", "serve", "--base-url", server_url, *sizes, *kept, "--concurrency", "1", "3"]) == 0
    found = lines(file)
    assert [(line["concurrency"], line["seed"], line["completed"]) for line in found] == [(1, 5, 6), (3, 6, 6)]
    assert found[0]["max_in_flight"] == 1
    assert found[1]["max_in_flight"] <= 3
    assert [line["cached_tokens"] for line in found] == [0, 0]
    assert [request["concurrency"] for request in lines(each)] == [1] * 6 + [3] * 6
    sweep = capsys.readouterr().out.splitlines()[-3:]
    assert sweep[0].startswith("OPEN AT MOST")
    assert [row.split()[0] for row in sweep[1:]] == ["1", "3"]
    assert f"{found[1]['output_tok_s']:,.1f}" in sweep[2]


def test_serve_with_a_dataset(server_url: str, tmp_path: Path) -> None:
    dataset, each = tmp_path / "d.jsonl", tmp_path / "each.jsonl"
    chat = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 2}
    asked: list[dict[str, Any]] = [chat, {"prompt": "the", "max_tokens": 3}, {"prompt_token_ids": [1, 2, 3, 4, 5]}]
    dataset.write_text("".join(json.dumps(line) + "\n" for line in asked))
    options = ["--num-requests", "4", "--dataset", str(dataset), "--output-len", "4", "4", "--per-request", str(each)]
    assert main(["bench", "serve", "--base-url", server_url, *options]) == 0
    assert [request["output_tokens"] for request in lines(each)] == [2, 3, 4, 2]
    assert lines(each)[2]["prompt_tokens"] == 5


def test_serve_profiles_the_server_in_the_middle(
    server_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "r.jsonl"
    sizes = ["--num-requests", "8", "--vocab-size", "288", "--input-len", "42", "50", "--output-len", "60", "60"]
    kept = ["--result-filename", str(file), "--seed", "11"]
    profile = ["--profile", "--profile-steps", "20", "--profile-dir", str(tmp_path / "traces")]
    assert main(["bench", "serve", server_url, *sizes, *kept, *profile, "--concurrency", "4"]) == 0
    shown = capsys.readouterr().err
    (record,) = lines(file)
    assert_documented(record, results, serve)
    (trace,) = (tmp_path / "traces").iterdir()
    assert record["profile"] == {"trace": str(trace), "error": None, "gpus": {}}
    assert f"trace: {trace}\nit holds no work of a GPU" in shown
    assert "do not compare" in shown
    with gzip.open(trace) as opened:
        names = [event.get("name") for event in json.load(opened)["traceEvents"]]
    assert names.count("aten::embedding") == 20  # a step embeds its tokens once
    assert record["completed"] == 8


def test_what_was_not_profiled_says_why(scripted: Scripted, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The server has no such route; and a single answer is over before the load has come to its middle."""
    file = tmp_path / "r.jsonl"
    whole = {"choices": [{"index": 0, "text": "a", "finish_reason": "length"}]}

    def answer(body: dict[str, Any]) -> tuple[int, list[Any]]:
        return (200, [whole, "[DONE]"]) if "model" in body else (404, [{"error": {"message": "no such route"}}])

    with scripted(answer) as url:
        load = ["bench", "serve", url, "--model", "m", "--warm-ups", "0", "--profile", "--result-filename", str(file)]
        assert main([*load, "--num-requests", "4", "--concurrency", "1", "--request-rate", "20"]) == 0
        assert "not profiled: POST /start_profile: 404 no such route" in capsys.readouterr().err
        assert main([*load, "--num-requests", "1"]) == 0
    assert [line["profile"]["trace"] for line in lines(file)] == [None, None]
    assert "the load was over" in capsys.readouterr().err


def test_failed_requests_are_shown_and_give_status_1(server_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--num-requests", "2", "--vocab-size", "100000000", "--warm-ups", "0", "--input-len", "2000", "2000"]
    assert main(["bench", "serve", "--base-url", server_url, *options]) == 1
    captured = capsys.readouterr()
    assert "0 answered, 2 failed" in captured.out
    assert "failed: HTTP 400:" in captured.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["serve", "--base-url", "localhost"], "'localhost' is no URL of a server"),
        (["serve", "localhost"], "'localhost' is no URL of a server"),
        (["serve"], "pymllm bench serve http://localhost:8000"),
        (["serve", "http://h", "--profile-steps", "9"], "have an effect only with --profile"),
        (["serve", "http://a", "--base-url", "http://b"], "given twice, as http://a and --base-url http://b"),
        (["serve", "--base-url", "http://127.0.0.1:1"], "no answer from http://127.0.0.1:1"),
        (["serve", "--base-url", "http://127.0.0.1:1", "--model", "m", "--dataset", "nowhere.jsonl"], "cannot be read"),
        (["serve", "--base-url", "http://h", "--result-filename", "/nowhere/r.jsonl"], "cannot be written to"),
        (["throughput", "model.path=/nowhere", "--input-len", "9", "3"], "--input-len 9 3"),
        (["throughput", "model.path=/nowhere"], "/nowhere"),
        (["latency", "model.pth=x"], "model.pth"),
    ],
)
def test_what_the_user_can_fix_is_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", *arguments]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert message in error


@pytest.mark.parametrize(
    "line", ['{"text": "x"}', '{"prompt": "x", "messages": []}', '{"prompt": "x", "max_tokens": 0}', "[]"]
)
def test_a_bad_dataset_line_is_named(line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dataset = tmp_path / "d.jsonl"
    dataset.write_text('{"prompt": "x"}\n\n' + line + "\n")
    assert main(["bench", "serve", "--base-url", "http://127.0.0.1:1", "--model", "m", "--dataset", str(dataset)]) == 2
    assert "line 3:" in capsys.readouterr().err
