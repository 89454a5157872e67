"""``pymllm chat``: piped, in a real terminal, and against a running server."""

from __future__ import annotations

import io
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import threading
import time

import httpx
import pytest

from pymllm import SamplingParams
from pymllm.cli import main
from pymllm.cli.chat_backends import _pieces
from pymllm.cli.chat_loop import read_message
from pymllm.cli.chat_session import Footer

SMALL = ["engine.max_total_tokens=4096", "model.dtype=float32"]
GREEDY = "/set temperature=0\n/set max_tokens=8\n/set ignore_eos=true\n"


@pytest.fixture
def chat(folder, capsys, monkeypatch):
    """Types the input into the chat; returns (status, standard output, standard error)."""

    def call(typed, *words, target=None):
        monkeypatch.setattr("sys.stdin", io.StringIO(typed))
        target = [target] if target else [f"model.path={folder}", *SMALL]
        status = main(["chat", *target, *words])
        return (status, *capsys.readouterr())

    return call


@pytest.fixture
def expect(llm):
    """The answers of a conversation, turn by turn."""

    def turns(*texts, system=None):
        messages = [{"role": "system", "content": system}] if system else []
        answers = []
        for text in texts:
            messages.append({"role": "user", "content": text})
            out = llm.chat(messages, SamplingParams(temperature=0, max_tokens=8, ignore_eos=True))[0]
            answers.append(out.outputs[0].text)
            messages.append({"role": "assistant", "content": answers[-1]})
        return answers

    return turns


@pytest.fixture(scope="module")
def server(llm):
    """A real server on localhost over the tests' engine; yields its URL."""
    import uvicorn

    from pymllm.compose import compose
    from pymllm.server import create_app

    config = compose({"model": {"path": "x"}}, {"server.api_key": "secret"})
    listener = socket.create_server(("127.0.0.1", 0))
    running = uvicorn.Server(uvicorn.Config(create_app(llm.frontend, config), log_level="error"))
    thread = threading.Thread(target=running.run, args=([listener],))
    thread.start()
    yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    running.should_exit = True
    thread.join()
    listener.close()


def test_a_conversation_through_a_pipe(chat, expect):
    status, out, err = chat(GREEDY + "hello\nand then?\n")
    assert (status, out) == (0, "".join(answer + "\n" for answer in expect("hello", "and then?")))
    assert "8 tokens" in err
    assert "prompt tokens cached" in err


def test_the_same_conversation_with_a_server(chat, expect, server):
    for url in (server, server + "/v1", server + "/v1/"):
        status, out, err = chat(GREEDY + "hello\nand then?\n", "--api-key", "secret", target=url)
        assert (status, out) == (0, "".join(answer + "\n" for answer in expect("hello", "and then?")))
        assert "8 tokens" in err
        assert "prompt tokens cached" in err


def test_the_commands(chat, expect, tmp_path):
    file = tmp_path / "talk.json"
    typed = (
        f"{GREEDY}hello\n/regen\n/system be brief\n/save {file}\n/reset\nagain\n//slash\n/set\n/help\n"
        "/set temperature=\n/quit\nnever read\n"
    )
    status, out, err = chat(typed)
    hello, again = expect("hello")[0], expect("again", "/slash", system="be brief")
    assert (status, out) == (0, "".join(text + "\n" for text in (hello, hello, *again)))
    saved = json.loads(file.read_text())
    assert saved["model"] == "tiny-qwen3"  # as a server would call it, not the path
    assert saved["messages"] == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": hello},
    ]
    assert "temperature=0, max_tokens=8, ignore_eos=True" in err
    assert "temperature is not set" in err
    assert "/regen" in err


def test_mistakes_are_answered_and_the_chat_goes_on(chat, expect, tmp_path):
    (tmp_path / "there").write_text("precious")
    mistakes = {
        "/frobnicate": "no command /frobnicate",
        "/set temperatur=3": "there is no sampling value 'temperatur'. Did you mean 'temperature'?",
        "/set top-k=3": "there is no sampling value 'top-k'. Did you mean 'top_k'?",
        "/set temperature 3": "write /set NAME=VALUE",
        "/set xyzzy=1": "NAME is one of",
        "/set temperature=-1": "temperature must be",
        "/set n=2": "NAME is one of",
        f"/save {tmp_path}/there": "exists",
        f"/save {tmp_path}/no/where": "cannot be written",
        "/save": "write /save FILE",
        "/regen": "nothing to answer again",
        "x" * 6000: "tokens",
    }
    status, out, err = chat(GREEDY + "\n".join(mistakes) + "\nhello\n")
    assert (status, out.strip("\n")) == (1, expect("hello")[0].strip("\n"))
    for sentence in mistakes.values():
        assert sentence in err
    assert (tmp_path / "there").read_text() == "precious"


def test_an_answer_that_was_stopped_at_once_has_no_times():
    assert str(Footer()) == "0 tokens"
    assert str(Footer(tokens=3, first=0.5, seconds=1.0)) == "3 tokens, 2.0 tok/s, first after 0.50 s"


@pytest.mark.parametrize(
    "typed, message",
    [
        ("one line\nnext\n", "one line"),
        ("a\\\nb\\\nc\nnext\n", "a\nb\nc"),
        ('"""\na\n\nb\n"""\nnext\n', "a\n\nb"),
        ('"""a\nb"""\n', "a\nb"),
        ('"""a"""\n', "a"),
        ("ends\\\n", "ends\n"),
        ('"""never closed\nx\n', "never closed\nx"),
    ],
)
def test_messages_of_several_lines(typed, message):
    lines = iter(typed.splitlines())

    def read(continued):
        try:
            return next(lines)
        except StopIteration:
            raise EOFError from None

    assert read_message(read) == message


def test_what_cannot_be_chatted_with_is_one_line_and_status_2(chat, server, monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("PYMLLM_API_KEY", raising=False)
    with socket.create_server(("127.0.0.1", 0)) as unused:
        nowhere = f"http://127.0.0.1:{unused.getsockname()[1]}"
    for target, words, sentence in (
        (server, [], "wants an API key"),
        (server, ["--api-key", "wrong"], "wants an API key"),
        (server, ["--api-key", "secret", "--model", "other"], "does not serve 'other'"),
        (server, ["cache=chunk"], "is a running server"),
        (nowhere, [], "no answer from"),
        (None, ["--model", "x"], "only with the URL of a server"),
    ):
        status, out, err = chat("hello\n", *words, target=target)
        assert (status, out) == (2, "")
        assert sentence in err
        assert len(err.splitlines()) == 1


def test_the_api_key_may_be_in_the_environment(chat, expect, server, monkeypatch):
    monkeypatch.setenv("PYMLLM_API_KEY", "secret")
    assert chat(GREEDY + "hello\n", target=server)[1] == expect("hello")[0] + "\n"


class Pty:
    """A person at a terminal."""

    def __init__(self, words):
        self.main, side = os.openpty()
        environment = {**os.environ, "TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "pymllm", *words],
            stdin=side, stdout=side, stderr=side, start_new_session=True, env=environment,
            preexec_fn=lambda: __import__("fcntl").ioctl(0, __import__("termios").TIOCSCTTY, 0),
        )  # fmt: skip
        os.close(side)
        self.seen = ""

    def type(self, text):
        os.write(self.main, text.encode())

    def wait_for(self, *texts, seconds=60):
        """Read until all texts were shown since the last call, in this order: a line that is typed shows its
        prompt again, but only the prompt after an answer is ready for a key."""
        end = time.monotonic() + seconds
        order = re.compile(".*".join(map(re.escape, texts)), re.DOTALL)
        while not order.search(self.seen):
            ready, _, _ = select.select([self.main], [], [], max(0, end - time.monotonic()))
            assert ready, f"{texts} did not appear in {self.seen!r}"
            self.seen += os.read(self.main, 65536).decode(errors="replace")
        shown, self.seen = self.seen, ""
        return shown

    def close(self):
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        os.close(self.main)


def wait_until(condition, seconds=60):
    end, pause = time.monotonic() + seconds, threading.Event()
    while not condition():
        assert time.monotonic() < end
        pause.wait(0.005)


def test_in_a_terminal_ctrl_c_stops_the_answer_and_ctrl_d_leaves(server, llm):
    stats = llm.frontend.client.stats
    terminal = Pty(["chat", server, "--api-key", "secret"])
    try:
        terminal.wait_for("you>")
        terminal.type("/set max_tokens=900\r")
        terminal.wait_for("max_tokens is 900", "you>")
        terminal.type("/set ignore_eos=true\r")
        terminal.wait_for("ignore_eos is True", "you>")
        terminal.type("hello\r")
        wait_until(lambda: stats().running)
        terminal.type("\x03")
        terminal.wait_for("stopped;", "you>")
        wait_until(lambda: not stats().running)
        terminal.type("/set max_tokens=4\r")
        terminal.wait_for("max_tokens is 4", "you>")
        terminal.type("a line that is dropped\x03")
        terminal.wait_for("you>")
        terminal.type("again\r")
        terminal.wait_for("4 tokens", "you>")
        terminal.type("\x04")
        assert terminal.process.wait(timeout=30) == 0
    finally:
        terminal.close()


def test_line_separators_inside_an_event_do_not_end_it():
    event = {"choices": [{"delta": {"content": "a\u2028b\u0085c"}}]}
    body = f"data: {json.dumps(event, ensure_ascii=False)}\n\ndata: [DONE]\n\n".encode()
    pieces = list(_pieces(httpx.Response(200, content=body)))
    assert [piece.text for piece in pieces] == ["a\u2028b\u0085c"]
