"""A profile of a running engine holds its steps, one at a time, and costs no request anything but time."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engines import answers, greedy, start
from inbox import Inbox
from pymllm.bench.trace_file import read_trace
from pymllm.engine.client import EngineClient
from pymllm.engine.messages import EngineRequest, ProfileRequest
from pymllm.errors import ConflictError, EngineDeadError, RequestError


@pytest.fixture(scope="module", params=[False, True], ids=["thread", "process"])
def client(request, tiny_llama) -> Iterator[EngineClient]:
    # A process that says nothing for so long would be ended, unless it says before that it is busy.
    client = start(tiny_llama, {"engine.stall_seconds": 0.5}, process=request.param)
    yield client
    client.close()


def wanted(folder: Path, steps: int | None = None, **more: Any) -> ProfileRequest:
    return ProfileRequest(folder=str(folder), steps=steps, **more)


def events(path: str) -> list[dict[str, Any]]:
    with gzip.open(path) as file:
        return [event for event in json.load(file)["traceEvents"] if event.get("ph") == "X"]


def names(path: str) -> Counter[str]:
    return Counter(event["name"] for event in events(path))


def test_steps_are_recorded_until_it_is_stopped(client, tmp_path, prompts) -> None:
    expected = answers(client, prompts[:4], 6)
    before = client.stats().total_steps
    profile = client.start_profile(wanted(tmp_path / "new" / "folder"))
    assert Path(profile.path).parent == tmp_path / "new" / "folder"
    assert not Path(profile.path).exists()
    assert answers(client, prompts[:4], 6) == expected
    stopped = client.stop_profile()
    assert stopped.path == profile.path
    assert stopped.steps == client.stats().total_steps - before
    # The model embeds the tokens of a step once.
    assert names(profile.path)["aten::embedding"] == stopped.steps
    assert [path.name for path in Path(profile.path).parent.iterdir()] == [Path(profile.path).name]


def test_it_ends_by_itself_after_the_steps_asked_for(client, tmp_path, prompts) -> None:
    inbox = Inbox()
    profile = client.start_profile(wanted(tmp_path, steps=5))
    for i in range(6):
        client.submit(EngineRequest(id=f"p{i}", token_ids=prompts[i], sampling=greedy(40)), inbox.deliver)
    for i in range(6):
        assert inbox.wait(f"p{i}").finish_reason == "length"
        assert len(inbox.tokens(f"p{i}")) == 40
    assert names(profile.path)["aten::embedding"] == 5
    assert read_trace(Path(profile.path)).steps == 5
    with pytest.raises(ConflictError, match=f"no profile is running; the last trace is '{profile.path}'"):
        client.stop_profile()


def test_there_is_one_at_a_time(client, tmp_path, prompts) -> None:
    first = client.start_profile(wanted(tmp_path))
    with pytest.raises(ConflictError, match=f"running already, into '{first.path}'"):
        client.start_profile(wanted(tmp_path))
    client.stop_profile()
    second = client.start_profile(wanted(tmp_path))
    assert second.path != first.path
    answers(client, prompts[:1], 2)
    client.stop_profile()
    assert sorted(map(str, tmp_path.iterdir())) == sorted([first.path, second.path])


def test_python_functions_are_recorded_if_asked_for(client, tmp_path, prompts) -> None:
    found = []
    for stacks in (False, True):
        client.start_profile(wanted(tmp_path, stacks=stacks))
        answers(client, prompts[:1], 2)
        found.append({event["cat"] for event in events(client.stop_profile().path)})
    assert "python_function" not in found[0]
    assert "python_function" in found[1]


def test_what_cannot_be_written_is_refused(client, tmp_path, prompts) -> None:
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(RequestError, match=f"traces cannot be written to '{file}': "):
        client.start_profile(wanted(file))
    profile = client.start_profile(wanted(tmp_path / "gone", steps=3))
    (tmp_path / "gone").rmdir()
    assert len(answers(client, prompts[:1], 9)[0]) == 9  # the failure to write is only logged
    assert not Path(profile.path).exists()
    client.start_profile(wanted(tmp_path / "gone"))
    (tmp_path / "gone").rmdir()
    with pytest.raises(RequestError, match="cannot be written"):
        client.stop_profile()
    assert len(answers(client, prompts[:1], 3)[0]) == 3


@pytest.mark.parametrize("process", [False, True], ids=["thread", "process"])
def test_an_engine_that_is_closed_gives_it_up(tiny_llama, tmp_path, prompts, process) -> None:
    client = start(tiny_llama, process=process)
    client.start_profile(wanted(tmp_path))
    answers(client, prompts[:1], 2)
    client.close()
    assert not list(tmp_path.iterdir())
    with pytest.raises(EngineDeadError):
        client.stop_profile()
