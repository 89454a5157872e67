"""``pymllm run`` without serving: one prompt to standard output, or a file of prompts."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys

import pytest

from pymllm import SamplingParams
from pymllm.cli import main

SMALL = ["engine.max_total_tokens=4096", "model.dtype=float32"]
OPENAI = {"custom_id": "c", "method": "POST", "url": "/v1/chat/completions"}
GREEDY = ["--max-tokens", "8", "--temperature", "0"]


@pytest.fixture
def run(folder, capsys):
    """Runs the command; returns (status, standard output, standard error)."""

    def call(*words):
        status = main(["run", f"model.path={folder}", *SMALL, *map(str, words)])
        return (status, *capsys.readouterr())

    return call


def expected(llm, tokenizer, prompt, system=None, raw=False):
    params = SamplingParams(temperature=0, max_tokens=8)
    if raw:
        return llm.generate(prompt, params)[0].outputs[0].text
    messages = [{"role": "system", "content": system}] if system else []
    return llm.chat([*messages, {"role": "user", "content": prompt}], params)[0].outputs[0].text


def test_a_prompt_is_a_chat_message_and_the_answer_is_all_of_standard_output(run, llm, tokenizer):
    status, out, err = run("--prompt", "hello", *GREEDY)
    assert (status, out) == (0, expected(llm, tokenizer, "hello") + "\n")
    assert "new tokens" in err
    assert "first after" in err


def test_system_raw_and_quiet(run, llm, tokenizer):
    status, out, err = run("--prompt", "hello", "--system", "be brief", "--quiet", *GREEDY)
    assert (status, out, err) == (0, expected(llm, tokenizer, "hello", system="be brief") + "\n", "")
    assert run("--prompt", "hello", "--raw", *GREEDY)[1] == expected(llm, tokenizer, "hello", raw=True) + "\n"


def test_standard_input_and_seed(run, monkeypatch):
    answers = []
    for seed in ("1", "1", "2"):
        monkeypatch.setattr("sys.stdin", io.StringIO("from a pipe"))
        answers.append(run("--prompt", "-", "--seed", seed, "--max-tokens", "12", "--top-p", "0.9")[1])
    assert answers[0] == answers[1] != answers[2]


def test_ctrl_c_while_the_model_is_loaded_is_quiet(folder):
    command = [sys.executable, "-m", "pymllm", "run", f"model.path={folder}", *SMALL, "--prompt", "hello"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    said = process.stderr.readline()
    assert "model: qwen3" in said  # it is being loaded, by the engine's thread
    process.send_signal(signal.SIGINT)
    _, rest = process.communicate(timeout=60)
    assert process.returncode == 130
    assert all(" pymllm info: " in line for line in rest.splitlines()), rest


@pytest.mark.parametrize(
    "words, sentence",
    [
        (["--temperature", "1"], "--temperature has an effect only with --prompt or --batch"),
        (["--quiet"], "--quiet has an effect only with"),
        (["--system", "x"], "--system has an effect only with --prompt"),
        (["--force"], "--force has an effect only with --batch"),
        (["--prompt", "x", "--output", "y"], "--output has an effect only with --batch"),
        (["--prompt", "x", "--batch", "y"], "exclude each other"),
        (["--batch", "x"], "--batch needs --output"),
        (["--prompt", "x", "--raw", "--system", "y"], "--raw turns off"),
        (["--prompt", "x", "--top-p", "2"], "top_p must be"),
        (["--batch", "/nowhere.jsonl", "--output", "out.jsonl"], "cannot be read"),
        (["--prompt", "", "--raw", "--quiet"], "prompt is empty"),
    ],
)
def test_mistakes_are_one_line_and_status_2(run, words, sentence):
    status, out, err = run(*words)
    assert (status, out) == (2, "")
    assert sentence in err
    assert len(err.splitlines()) == 1


def write(path, lines):
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


def read(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_batch_answers_every_line_in_order(run, llm, tokenizer, tmp_path):
    greedy = {"temperature": 0, "max_tokens": 6, "ignore_eos": True}
    chat = [{"role": "user", "content": "hello"}]
    openai = {"custom_id": "o", "method": "POST", "url": "/v1/chat/completions"}
    source = write(
        tmp_path / "in.jsonl",
        [
            {"id": "a", "prompt": "hello", **greedy, "max_tokens": 60},
            {"custom_id": 7, "messages": chat, **greedy},
            "",
            {"prompt_token_ids": [5, 6, 7], **greedy, "n": 2},
            {**openai, "body": {"model": "default", "messages": chat, "max_completion_tokens": 6, "temperature": 0}},
            {"prompt": "hello", **greedy, "logprobs": 1, "logit_bias": {"65": 100}},
        ],
    )
    status, out, err = run("--batch", source, "--output", tmp_path / "out.jsonl", "--quiet", "--temperature", "1")
    assert (status, out, err) == (0, "", "")
    long, message, two, official, biased = read(tmp_path / "out.jsonl")
    params = SamplingParams(**greedy)
    reference = llm.generate("hello", SamplingParams(**{**greedy, "max_tokens": 60}))[0]
    assert (long["id"], long["text"]) == ("a", reference.outputs[0].text)
    assert long["usage"]["completion_tokens"] == 60
    assert (message["custom_id"], message["text"]) == (7, llm.chat(chat, params)[0].outputs[0].text)
    ids = llm.generate([[5, 6, 7]], params)[0].outputs[0].token_ids
    assert [choice["token_ids"] for choice in two["outputs"]] == [ids, ids]
    stopping = llm.chat(chat, SamplingParams(temperature=0, max_tokens=6))[0]
    assert official["custom_id"] == "o"
    assert official["error"] is None
    body = official["response"]["body"]
    assert body["choices"][0]["message"]["content"] == stopping.outputs[0].text
    assert body["usage"]["prompt_tokens"] == len(stopping.prompt_token_ids)
    assert biased["text"] == tokenizer.decode([65] * 6)
    assert all("65" in entry for entry in biased["logprobs"])
    assert not (tmp_path / "out.jsonl.part").exists()


def test_bad_lines_are_errors_with_their_number_and_do_not_stop_the_others(run, tmp_path):
    good = {"prompt": "hello", "max_tokens": 2}
    bad = [
        "{not json",
        "[1]",
        {"id": "x", "prompt": "hello", "max_tokens": 0},
        {"prompt": "hello", "temprature": 1},
        {"prompt": "hello", "messages": []},
        {"prompt_token_ids": [99999]},
        {"prompt": ["hello"]},
        {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
        {"custom_id": "c", "url": "/v1/embeddings", "body": {}},
        {"custom_id": "c", "url": "/v1/chat/completions", "body": {"messages": [], "frobnicate": 1}},
        '{"prompt": "\xff"}'.encode("latin-1"),
    ]
    source = tmp_path / "in.jsonl"
    with source.open("wb") as writer:
        for line in [good, *bad, good]:
            writer.write(
                (line if isinstance(line, bytes) else (line if isinstance(line, str) else json.dumps(line)).encode())
                + b"\n"
            )
    status, _, err = run("--batch", source, "--output", tmp_path / "out.jsonl", "--quiet")
    assert status == 1
    assert f"{len(bad)} of {len(bad) + 2} lines could not be answered, the first is line 2" in err
    first, *answers, last = read(tmp_path / "out.jsonl")
    assert first["finish_reason"] == last["finish_reason"] == "length"
    assert len(answers) == len(bad)
    for number, answer in enumerate(answers, 2):
        error = answer["error"]
        assert (error["line"] if isinstance(error, dict) else answer["line"]) == number
    assert answers[2]["id"] == "x"
    assert "max_tokens" in answers[2]["error"]
    assert answers[3]["error"] == "unknown field 'temprature'. Did you mean 'temperature'?"
    assert "image_url is not supported" in answers[7]["error"]
    assert "/v1/chat/completions" in answers[8]["error"]["message"]
    assert "'frobnicate'" in answers[9]["error"]["message"]


@pytest.mark.parametrize(
    "line, sentence",
    [
        ({"promt": "hello"}, "unknown field 'promt'. Did you mean 'prompt'?"),
        ({"mesages": [], "id": "a"}, "unknown field 'mesages'. Did you mean 'messages'?"),
        ({"prompt": "hello", "zzz": 1}, "unknown field 'zzz'"),
        ({"prompt": "hello", "add_generation_prompt": True}, "add_generation_prompt has an effect only with messages"),
        ({"max_tokens": 3}, "a line must hold one of prompt, messages, prompt_token_ids, or an OpenAI batch request"),
        ({**OPENAI, "bdy": {}}, "unknown field 'bdy'. Did you mean 'body'?"),
        ({**OPENAI, "body": {}, "temperature": 0}, "unknown field 'temperature'"),
        (OPENAI, "the request body must be a JSON object"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_mistyped_key_is_named(run, tmp_path, line, sentence):
    source = write(tmp_path / "in.jsonl", [line])
    assert run("--batch", source, "--output", tmp_path / "out.jsonl", "--quiet")[0] == 1
    [answer] = read(tmp_path / "out.jsonl")
    error = answer["error"]
    assert (error["message"] if isinstance(error, dict) else error) == sentence


def test_answers_in_openai_form_name_the_model_as_the_server_does(run, folder, tmp_path):
    body = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 1}
    source = write(tmp_path / "in.jsonl", [{**OPENAI, "body": body}])
    for words, name in (((), folder.name), (("server.model_name=team/mine",), "team/mine")):
        assert run("--batch", source, "--output", tmp_path / "out.jsonl", "--force", *words)[0] == 0
        assert read(tmp_path / "out.jsonl")[0]["response"]["body"]["model"] == name


def test_an_existing_output_is_only_replaced_by_force_and_never_by_a_failed_start(run, tmp_path):
    source = write(tmp_path / "in.jsonl", [{"prompt": "hello", "max_tokens": 1, "ignore_eos": True}])
    target = write(tmp_path / "out.jsonl", ["precious"])
    status, _, err = run("--batch", source, "--output", target)
    assert status == 2
    assert "--force" in err
    status, _, _ = run("--batch", source, "--output", target, "--force", "model.load_format=gguf")
    assert status == 2
    assert target.read_text() == "precious\n"
    assert run("--batch", source, "--output", target, "--force")[0] == 0
    assert read(target)[0]["finish_reason"] == "length"


def test_options_are_defaults_for_lines_of_both_forms(run, tmp_path):
    chat = [{"role": "user", "content": "hello"}]
    body = {"messages": chat, "ignore_eos": True}
    openai = {"url": "/v1/chat/completions", "custom_id": "1"}
    source = write(
        tmp_path / "in.jsonl",
        [
            {"messages": chat, "ignore_eos": True},
            {**openai, "body": body},
            {**openai, "body": {**body, "max_completion_tokens": 5}},
        ],
    )
    assert run("--batch", source, "--output", tmp_path / "o", "--max-tokens", "3")[0] == 0
    plain, official, own = read(tmp_path / "o")
    assert plain["usage"]["completion_tokens"] == 3
    assert official["response"]["body"]["usage"]["completion_tokens"] == 3
    assert own["response"]["body"]["usage"]["completion_tokens"] == 5
