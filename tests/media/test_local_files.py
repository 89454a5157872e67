"""Files below the configured folders, and no others."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from media_files import noise, rgb_png
from pymllm.errors import ConfigError, RequestError
from pymllm.media import Media, Picture, offline_image, parse_part
from pymllm.media.files import Folders
from pymllm.media.source import LocalFile

PNG = rgb_png(noise(3, 4))


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """allowed/ with files, links and stranger things in it; beside it what nobody may see."""
    allowed = tmp_path / "allowed"
    (allowed / "deep").mkdir(parents=True)
    (tmp_path / "allowed-not").mkdir()
    for name in ("allowed/a.png", "allowed/deep/b c?#%.png", "allowed-not/secret.png", "secret.png"):
        (tmp_path / name).write_bytes(PNG)
    (allowed / "link-inside.png").symlink_to("deep/b c?#%.png")
    (allowed / "link-out.png").symlink_to("../secret.png")
    (allowed / "folder-out").symlink_to(tmp_path)
    (allowed / "loop").symlink_to("loop")
    (allowed / "empty.png").touch()
    os.mkfifo(allowed / "fifo.png")
    return tmp_path


def read(tree: Path, name: str) -> bytes:
    return Folders([str(tree / "allowed")]).read(LocalFile(name.replace("TREE", str(tree))), 1000)


@pytest.mark.parametrize(
    "name",
    [
        "TREE/allowed/a.png",
        "TREE/allowed/deep/../a.png",
        "TREE/allowed-not/../allowed/a.png",
        "TREE//allowed//deep/b c?#%.png",
        "TREE/allowed/link-inside.png",
        "TREE/allowed/folder-out/allowed/a.png",
        "file://TREE/allowed/a.png",
        "FILE://localhostTREE/allowed/a.png",
        "file:TREE/allowed/a.png",
        "file://TREE/allowed/deep/b%20c%3F%23%25.png",
    ],
)
def test_below(tree: Path, name: str) -> None:
    assert read(tree, name) == PNG


OUTSIDE = "the file is not below a folder that this server may read (media.allowed_local_folders)"


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("TREE/secret.png", OUTSIDE),
        ("TREE/no-such-file.png", OUTSIDE),
        ("TREE/allowed/../secret.png", OUTSIDE),
        ("TREE/allowed/link-out.png", OUTSIDE),
        ("TREE/allowed/folder-out/secret.png", OUTSIDE),
        ("TREE/allowed-not/secret.png", OUTSIDE),
        ("file://TREE/allowed/..%2Fsecret.png", OUTSIDE),
        ("file://TREE/allowed/%2e%2e/secret.png", OUTSIDE),
        ("/", OUTSIDE),
        ("/dev/zero", OUTSIDE),
        ("/proc/self/environ", OUTSIDE),
        ("TREE/allowed/no-such-file.png", "cannot be read: No such file"),
        ("TREE/allowed/a.png/b.png", "cannot be read: Not a directory"),
        ("TREE/allowed/" + "a" * 300, "cannot be read: File name too long"),
        ("TREE/allowed/loop", "not a regular file"),
        ("TREE/allowed/a\0.png", "not a valid name"),
        ("TREE/allowed/a\ud800.png", "not a valid name"),
        ("TREE/allowed", "that is a folder"),
        ("TREE/allowed/deep", "that is a folder"),
        ("TREE/allowed/fifo.png", "not a regular file"),
        ("TREE/allowed/empty.png", "is empty"),
        ("file://elsewhere.exampleTREE/allowed/a.png", "names another machine"),
        ("file://[TREE/allowed/a.png", "not valid"),
        ("file://TREE/allowed/a.png?x", "write ? and #"),
        ("file:a.png", "an absolute path"),
    ],
)
def test_refused(tree: Path, name: str, sentence: str) -> None:
    with pytest.raises(RequestError) as refused:
        read(tree, name)
    assert sentence in str(refused.value)


def test_too_large(tree: Path) -> None:
    path = tree / "allowed" / "large.png"
    with path.open("wb") as file:
        file.truncate(2**40)
    with pytest.raises(RequestError, match=r"larger than 1000 bytes \(media.max_bytes\)"):
        read(tree, str(path))


def test_a_link_put_there_after_the_check_is_not_followed(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders = Folders([str(tree / "allowed")])
    honest = os.path.realpath

    def swapping(path: str) -> str:
        real = honest(path)
        (tree / "allowed" / "deep").rename(tree / "allowed" / "moved")
        (tree / "allowed" / "deep").symlink_to(tree)
        return real

    monkeypatch.setattr(os.path, "realpath", swapping)
    with pytest.raises(RequestError, match="cannot be read: Not a directory"):
        folders.read(LocalFile(str(tree / "allowed" / "deep" / "secret.png")), 1000)


def test_no_folder_no_file(tree: Path, load: Callable[..., list[Media]]) -> None:
    part = {"type": "image_url", "image_url": f"file://{tree}/allowed/a.png"}
    with pytest.raises(RequestError, match=r"^here: this server reads no local files \(media.allowed_local_folders\)"):
        load(parse_part(part, "here", offline=True))
    [picture] = load(parse_part(part, "here"), allowed_local_folders=[str(tree / "allowed")])
    assert picture == Picture.of(noise(3, 4))


def test_python_callers_name_any_file(tree: Path, load: Callable[..., list[Media]]) -> None:
    pictures = load(
        *(offline_image(name, "x") for name in (tree / "secret.png", f"file://{tree}/allowed/link-out.png"))
    )
    assert pictures == [Picture.of(noise(3, 4))] * 2
    for name in ("/dev/zero", tree / "allowed" / "fifo.png"):
        with pytest.raises(RequestError, match="not a regular file"):
            load(offline_image(name, "x"))
    with pytest.raises(RequestError, match="that is a folder"):
        load(offline_image(tree, "x"))


def test_a_socket_is_no_file(tree: Path, load: Callable[..., list[Media]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tree / "allowed")
    with socket.socket(socket.AF_UNIX) as unix:
        unix.bind("socket.png")
        with pytest.raises(RequestError, match="not a regular file"):
            read(tree, "TREE/allowed/socket.png")


@pytest.mark.parametrize("folder", ["TREE/none", "TREE/secret.png", "relative"])
def test_a_folder_that_is_none_is_a_mistake_of_the_configuration(tree: Path, folder: str) -> None:
    with pytest.raises(ConfigError, match=r"media.allowed_local_folders: '.*' is not the absolute path of a folder"):
        Folders([folder.replace("TREE", str(tree))])
