"""``pymllm config`` prints YAML that says every key, and that composes to the same again."""

from __future__ import annotations

from pathlib import Path

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
    assert list(printed) == ["model", "quant", "attention", "cache", "engine", "server", "log"]
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
    assert (
        done.stderr
        == "pymllm: override 'b.yaml': there is no '=' in it; write KEY=VALUE, for example cache.page_size=32\n"
    )
