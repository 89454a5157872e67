"""``pymllm config`` prints YAML that says every key, and that composes to the same again."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from sites import run_pymllm


def test_it_prints_every_key_with_overrides(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(
        "model: {path: somewhere}\ncache: {plugin: radix, eviction: lfu, page_size: 8}\n"
    )
    done = run_pymllm("config", "mine.yaml", "engine.max_batch_tokens=64", "log.level=debug", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    printed = yaml.safe_load(done.stdout)
    assert printed["cache"] == {"plugin": "radix", "page_size": 8, "eviction": "lfu"}
    assert (printed["engine"]["max_batch_tokens"], printed["log"]) == (64, {"level": "debug"})
    assert list(printed) == ["model", "quant", "attention", "cache", "engine", "server", "media", "log"]
    (tmp_path / "again.yaml").write_text(done.stdout)
    assert run_pymllm("config", "again.yaml", cwd=tmp_path).stdout == done.stdout


def test_overrides_alone() -> None:
    done = run_pymllm("config", "model.path=x", "cache=chunk")
    assert yaml.safe_load(done.stdout)["cache"] == {"plugin": "chunk", "page_size": 16}


def test_two_files_are_refused(tmp_path: Path) -> None:
    for name in ("a.yaml", "b.yaml"):
        (tmp_path / name).write_text("model: {path: x}")
    done = run_pymllm("config", "a.yaml", "b.yaml", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr == (
        "pymllm: override 'b.yaml': only one file is taken; change what differs with KEY=VALUE, for example "
        "cache.page_size=32\n"
    )
    done = run_pymllm("config", "a.yaml", "b", cwd=tmp_path)
    assert done.stderr.startswith("pymllm: override 'b': there is no '=' in it; write KEY=VALUE")


def test_a_key_is_printed_as_a_reference_that_composes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYMLLM_API_KEY", raising=False)
    words = ("config", "model.path=x", "server.api_key=hunter2")
    shown = run_pymllm(*words).stdout
    assert "hunter2" not in shown
    assert yaml.safe_load(shown)["server"]["api_key"] == "${oc.env:PYMLLM_API_KEY}"
    (tmp_path / "again.yaml").write_text(shown)
    refused = run_pymllm("config", "again.yaml", cwd=tmp_path)
    assert refused.returncode == 2
    assert "the environment variable PYMLLM_API_KEY is not set" in refused.stderr
    monkeypatch.setenv("PYMLLM_API_KEY", "hunter2")
    again = run_pymllm("config", "again.yaml", "--show-secrets", cwd=tmp_path)
    assert again.stdout == run_pymllm(*words, "--show-secrets").stdout
    assert yaml.safe_load(again.stdout)["server"]["api_key"] == "hunter2"


def test_a_key_that_is_not_set_is_printed_as_null() -> None:
    assert yaml.safe_load(run_pymllm("config", "model.path=x").stdout)["server"]["api_key"] is None
