"""Calibration data: a user's lines, and the text that is read without them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from pymllm.errors import ConfigError
from pymllm.quantize.calibration import default_texts, has_images, read_samples


def written(folder: Path, *lines: Any) -> Path:
    file = folder / "calib.jsonl"
    file.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
    return file


def test_every_kind_of_line(tmp_path: Path) -> None:
    Image.new("RGB", (4, 4)).save(tmp_path / "a.png")
    image = {"type": "image", "image": tmp_path / "a.png"}
    file = written(
        tmp_path,
        {"text": "prose"},
        {"messages": [{"role": "user", "content": "hello"}]},
        {"image": "a.png", "text": "what?", "answer": "black"},
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "a.png"}}]}]},
        {"images": ["a.png", "a.png"]},
        {"text": "never read"},
    )
    found = read_samples(file, 5)
    assert found[:2] == ["prose", [{"role": "user", "content": "hello"}]]
    assert found[2] == [
        {"role": "user", "content": [image, {"type": "text", "text": "what?"}]},
        {"role": "assistant", "content": "black"},
    ]
    assert found[3] == [{"role": "user", "content": [image]}]
    assert found[4] == [{"role": "user", "content": [image, image, {"type": "text", "text": ""}]}]
    assert has_images(found)
    assert not has_images(found[:2])


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 2: is no JSON"),
        ({"prompt": "x"}, 'line 2: must have "text", "messages" or "image"'),
        ({"text": 3}, '"text" must be a string'),
        ({"image": "none.png"}, "there is no file"),
        ({"image": 3}, "must be the path of a file"),
        ({"messages": [{"role": "user"}]}, 'must have "role" and "content"'),
        ({"messages": [{"role": "user", "content": [{"type": "audio"}]}]}, "a part of the type 'audio'"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, line: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_samples(written(tmp_path, {"text": "good"}, line), 10)


def test_a_file_without_lines(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds no line"):
        read_samples(written(tmp_path, "", ""), 1)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_samples(tmp_path / "none.jsonl", 1)


def test_what_is_held_out_is_never_read() -> None:
    read, held_out = default_texts(held_out=False), default_texts(held_out=True)
    assert not set(read) & set(held_out)
    assert sum(map(len, read)) > 200_000
    assert sum(map(len, held_out)) > 50_000
