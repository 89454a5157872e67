"""An engine process ends when it must and only then, and its client never hangs."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from engines import TINY, answers, greedy, start
from inbox import Inbox
from pymllm.compose import compose
from pymllm.engine.messages import EngineRequest
from pymllm.engine.process import ProcessClient
from pymllm.errors import CapacityError, CheckpointError, EngineDeadError, PymllmError, RequestError
from sites import Site

SUPPORT = Path(__file__).parents[1] / "support"


def long_request(name: str, prompt: list[int]) -> EngineRequest:
    return EngineRequest(id=name, token_ids=prompt, sampling=greedy(400))


def test_a_killed_process_ends_every_request_once(tiny_llama, prompts) -> None:
    client, inbox = start(tiny_llama, process=True), Inbox()
    for i in range(12):
        client.submit(long_request(f"r{i}", prompts[i]), inbox.deliver)
    inbox.wait_for_tokens("r0", 2)
    os.kill(client._process.pid, signal.SIGKILL)
    killed = time.monotonic()
    for i in range(12):
        end = inbox.wait(f"r{i}")
        assert end.error == "the engine process ended unexpectedly (signal 9)"
    assert not client.alive
    for _ in range(2):
        with pytest.raises(EngineDeadError, match="signal 9"):
            client.submit(long_request("late", prompts[0]), inbox.deliver)
    with pytest.raises(EngineDeadError, match="signal 9"):
        client.reset_cache()
    client.abort("r0")
    client.close()
    client.close()
    assert time.monotonic() - killed < 30  # its end was seen: no engine.stall_seconds went by
    assert all(inbox.reasons(f"r{i}") == ["error"] for i in range(12))


def test_closing_aborts_what_is_open_once(tiny_llama, prompts) -> None:
    client, inbox = start(tiny_llama, process=True), Inbox()
    assert client.stats().pages_free == client.info.pages
    bad = greedy(4, stop="\ud800")  # half a surrogate pair, which no message can hold
    with pytest.raises(RequestError, match="cannot be sent"):
        client.submit(EngineRequest(id="a", token_ids=[1], sampling=bad), inbox.deliver)

    def closing(output) -> None:
        inbox.deliver(output)
        client.close()  # on the client's own thread

    client.submit(long_request("a", prompts[0]), inbox.deliver)  # its id is still free
    client.submit(long_request("b", prompts[1]), closing)
    assert inbox.wait("a").error is None
    assert inbox.wait("b").error is None
    folder = Path(client._folder)
    client.close()
    client.close()
    assert (inbox.reasons("a"), inbox.reasons("b")) == (["abort"], ["abort"])
    assert not client.alive
    assert client._process.poll() == 0
    assert not folder.exists()


@pytest.mark.parametrize(
    "overrides, kind",
    [
        ({"model.path": "no/where/at/all"}, CheckpointError),
        ({"engine.max_total_tokens": 1}, CapacityError),
    ],
    ids=["missing folder", "no room"],
)
def test_what_building_raises_is_the_same_in_a_thread(tiny_llama, overrides, kind) -> None:
    messages = []
    for process in (False, True):
        with pytest.raises(PymllmError) as caught:
            start(tiny_llama, overrides, process=process)
        assert type(caught.value) is kind
        messages.append(str(caught.value))
    assert messages[0] == messages[1]


def test_a_process_that_cannot_start_is_an_error(tiny_llama, monkeypatch) -> None:
    config = compose(None, {"model.path": str(tiny_llama), **TINY})
    monkeypatch.setattr(sys, "executable", shutil.which("false"))
    with pytest.raises(EngineDeadError, match="exit code 1"):
        ProcessClient(config, progress=False)


POLICY = """
from pymllm.plugin import CachePolicySpec, hookimpl

@hookimpl
def pymllm_cache():
    return CachePolicySpec(factory="failing_policy_impl:Failing")
"""

IMPLEMENTATION = """
from pymllm_cache_chunk.policy import ChunkCache

class Failing(ChunkCache):
    reuses = True

    def match(self, key):
        raise ZeroDivisionError("a bug in a policy")
"""


def test_a_process_whose_engine_fails_says_why(tiny_llama, tmp_path, monkeypatch) -> None:
    site = Site(tmp_path)
    site.add_plugin("cache.failing", "failing_policy", POLICY)
    (tmp_path / "failing_policy_impl.py").write_text(IMPLEMENTATION)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    client, inbox = start(tiny_llama, {"cache.plugin": "failing"}, process=True), Inbox()
    client.submit(long_request("fatal", [1, 2]), inbox.deliver)
    assert inbox.wait("fatal").error == "the engine failed: ZeroDivisionError: a bug in a policy"
    assert not client.alive
    client.close()


SERVER = f"""
import signal, sys
sys.path.insert(0, {str(SUPPORT)!r})
from engines import answers, start

client = start(sys.argv[1], process=True)

def answer(number, frame):
    print(number, answers(client, [[1, 2, 3]], 4)[0], flush=True)

for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, answer)
print("ready", flush=True)
while True:
    signal.pause()
"""


def test_the_parent_alone_decides_when_the_process_ends(tiny_llama) -> None:
    client = start(tiny_llama)
    [expected] = answers(client, [[1, 2, 3]], 4)
    client.close()
    parent = subprocess.Popen(
        [sys.executable, "-c", SERVER, str(tiny_llama)], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "ready\n"
        for number in (signal.SIGINT, signal.SIGTERM):  # Ctrl-C and service managers reach the whole group
            os.killpg(parent.pid, number)
            assert parent.stdout.readline() == f"{number.value} {expected}\n"
        parent.kill()
        parent.communicate(timeout=60)  # returns when nobody holds standard output any more: the engine is gone
    finally:
        parent.kill()
        parent.wait()


def test_a_long_temporary_folder_leaves_room_for_the_sockets(tiny_llama, prompts, tmp_path, monkeypatch) -> None:
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    client = start(tiny_llama, process=True)
    try:
        assert len(answers(client, prompts[:1], 2)[0]) == 2
    finally:
        client.close()
    assert list(deep.iterdir()) == []


def test_a_process_that_hangs_is_ended_but_one_that_idles_is_not(tiny_llama, prompts) -> None:
    client, inbox = start(tiny_llama, {"engine.stall_seconds": 0.5}, process=True), Inbox()
    try:
        time.sleep(1.2)  # nothing is open: no progress is expected
        assert client.alive
        client.submit(long_request("a", prompts[0]), inbox.deliver)
        inbox.wait_for_tokens("a", 2)
        os.kill(client._process.pid, signal.SIGSTOP)
        assert inbox.wait("a").error == "the engine made no progress for 0.5 s and was ended"
        assert not client.alive
    finally:
        client.close()
    assert inbox.reasons("a") == ["error"]
