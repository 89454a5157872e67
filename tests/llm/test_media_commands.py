"""``run --image``, ``run --video``, batch lines with parts, and ``/image`` and ``/video`` of the chat."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from media_files import saved
from pymllm import LLM, SamplingParams
from pymllm.cli import main
from pymllm.cli.chat_media import read_command
from pymllm.errors import RequestError
from pymllm.testing import make_tiny_vision_checkpoint
from pymllm.testing.media_prompt import picture
from seen import IMAGE, image, png_url, text, user

SMALL = ["engine.max_total_tokens=4096", "model.dtype=float32", "media.max_tokens=128"]
GREEDY = ["--max-tokens", "8", "--temperature", "0"]
PARAMS = SamplingParams(temperature=0, max_tokens=8)
A, B = picture(1, 70, 101), picture(2, 120, 40)


@pytest.fixture(scope="module")
def vision(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_vision_checkpoint(tmp_path_factory.mktemp("vision") / "tiny")


@pytest.fixture(scope="module")
def seeing(vision: Path) -> Any:
    with LLM(
        vision, {"engine.max_total_tokens": 4096, "model.dtype": "float32", "media.max_tokens": 128}, progress=False
    ) as llm:
        yield llm


@pytest.fixture
def files(tmp_path: Path) -> Path:
    Image.fromarray(A).save(tmp_path / "a.png")
    Image.fromarray(B).save(tmp_path / "b c.png")
    frames = [Image.fromarray(picture(seed, 64, 64)) for seed in (5, 6)]
    (tmp_path / "film.gif").write_bytes(saved(frames[0], "GIF", save_all=True, append_images=frames[1:], duration=500))
    return tmp_path


@pytest.fixture
def command(vision: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    def call(name: str, *words: object) -> tuple[int, str, str]:
        status = main([name, f"model.path={vision}", *SMALL, *map(str, words)])
        return (status, *capsys.readouterr())

    return call


def words(llm: LLM, *parts: Any, system: str | None = None) -> str:
    messages = [{"role": "system", "content": system}] if system else []
    return llm.chat([*messages, user(*parts)], PARAMS)[0].outputs[0].text


def test_run_answers_about_files(command: Any, seeing: LLM, files: Path) -> None:
    a, b, film = files / "a.png", files / "b c.png", files / "film.gif"
    status, out, err = command("run", "--image", a, "--prompt", "what?", *GREEDY)
    assert (status, out) == (0, words(seeing, image(A), text("what?")) + "\n")
    assert "first after" in err
    out = command("run", "--image", a, "--image", b, "--prompt", "x", "--system", "see", "--quiet", *GREEDY)[1]
    assert out == words(seeing, image(A), image(B), text("x"), system="see") + "\n"
    out = command("run", "--video", film, "--prompt", "x", "--quiet", *GREEDY)[1]
    assert out == words(seeing, {"type": "video", "video": film}, text("x")) + "\n"
    out = command("run", "--image", a, "--prompt", f"a {IMAGE}", "--raw", "--quiet", *GREEDY)[1]
    assert out == seeing.generate({"prompt": f"a {IMAGE}", "images": [A]}, PARAMS)[0].outputs[0].text + "\n"


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (["--image", "x.png"], "--image has an effect only with --prompt"),
        (["--video", "x.mp4"], "--video has an effect only with --prompt"),
        (["--image", "/no/such.png", "--prompt", "x"], "pymllm: --image /no/such.png: there is no such file"),
        (["--image", __file__, "--prompt", "x"], f"pymllm: {__file__}: "),
        (["--image", "/etc/hostname", "--prompt", "x"], "is of no known format"),
        (["--image", "/etc/hostname", "--prompt", "x", "--raw"], "images[0]: "),
    ],
)
def test_run_refuses_in_one_line(command: Any, given: list[str], sentence: str) -> None:
    status, out, err = command("run", *given)
    assert (status, out.strip()) == (2, "")
    assert sentence in err.splitlines()[-1]


def test_batch_lines_hold_parts_as_the_server_takes_them(command: Any, seeing: LLM, files: Path) -> None:
    body = {"model": "default", "messages": [user(image(A), text("x"))], "max_tokens": 8, "temperature": 0}
    lines = [
        {"id": 1, "messages": [user(image(A), text("x"))]},
        {"custom_id": "2", "method": "POST", "url": "/v1/chat/completions", "body": body},
        {"id": 3, "messages": [user({"type": "image_url", "image_url": str(files / "a.png")})]},
        {"id": 4, "messages": [user(text("x"))]},
        {"id": 5, "messages": [user({"type": "image", "image": "a.png"})]},
    ]
    (files / "in.jsonl").write_text("\n".join(map(json.dumps, lines)))
    status, _, err = command("run", "--batch", files / "in.jsonl", "--output", files / "out.jsonl", "--quiet", *GREEDY)
    assert status == 1
    assert "2 of 5 lines" in err
    answers = [json.loads(line) for line in (files / "out.jsonl").read_text().splitlines()]
    expected = words(seeing, image(A), text("x"))
    assert answers[0]["text"] == answers[1]["response"]["body"]["choices"][0]["message"]["content"] == expected
    assert answers[0]["usage"]["prompt_tokens"] == len(seeing.read_chat([user(image(A), text("x"))]).token_ids)
    assert "media.allowed_local_folders" in answers[2]["error"]
    assert answers[3]["text"] == words(seeing, text("x"))
    assert "is for Python callers" in answers[4]["error"]


def test_chat_attaches_files(command: Any, seeing: LLM, files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [
        "/set temperature=0",
        "/set max_tokens=8",
        f"/image {files / 'a.png'} what?",
        "/reset",
        f"/image {files / 'a.png'}",
        f"/image '{files / 'b c.png'}'",
        "both",
        "/reset",
        "/image /no/such.png",
        f"/video {files / 'film.gif'} x",
        f"/save {files / 'talk.json'}",
    ]
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(lines)))
    status, out, err = command("chat", "--plain")
    assert status == 1, "one command failed"
    assert "'/no/such.png' cannot be read: No such file or directory" in err
    film = {"type": "video", "video": files / "film.gif"}
    for expected in (
        words(seeing, image(A), text("what?")),
        words(seeing, image(A), image(B), text("both")),
        words(seeing, film, text("x")),
    ):
        assert expected in out
    talk = json.loads((files / "talk.json").read_text())
    assert talk["messages"][0]["content"][0]["video_url"]["url"].startswith("data:image/gif;base64,")


def test_paths_as_terminals_write_them(files: Path) -> None:
    part = {"type": "image_url", "image_url": {"url": None}}
    for written in (f"'{files}/b c.png'", f'"{files}/b c.png"', f"{files}/b\\ c.png"):
        found, rest = read_command("image", f"{written}  what's this?")
        assert rest == "what's this?"
        assert found["image_url"]["url"].startswith("data:image/png;base64,")
        assert found.keys() == part.keys()
    assert read_command("image", "https://a.example/x.png") == (
        {"type": "image_url", "image_url": {"url": "https://a.example/x.png"}}, "",
    )  # fmt: skip
    for wrong in ("", str(files), str(files / "none")):
        with pytest.raises(RequestError):
            read_command("image", wrong)


def test_a_chat_with_a_model_of_text_alone_goes_on(
    folder: Path, files: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(f"/image {files / 'a.png'} x\nhello\n"))
    assert main(["chat", f"model.path={folder}", *SMALL, "--plain"]) == 1
    assert "image_url is not supported by this model, which takes text only" in capsys.readouterr().err


def test_png_urls_are_what_the_chat_sends(files: Path) -> None:
    part, _ = read_command("image", str(files / "a.png"))
    assert len(part["image_url"]["url"]) > 100
    assert png_url(A)[:22] == part["image_url"]["url"][:22]
