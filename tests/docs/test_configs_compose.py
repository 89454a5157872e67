"""Every file of configs/, and every YAML block of the README, composes with the plugins of this repository."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pymllm.compose import compose, to_dict
from pymllm.errors import ConfigError

CONFIGS = sorted((Path(__file__).parents[2] / "configs").glob("*.yaml"))


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_it_composes_and_so_does_what_its_comments_tell_to_run(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYMLLM_API_KEY", "secret")
    composed = compose(path)
    assert compose(to_dict(composed)) == composed
    assert f"configs/{path.name}" in path.read_text().partition("model:")[0]


def test_the_public_server_does_not_start_without_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    [public] = [path for path in CONFIGS if path.name == "server-public.yaml"]
    monkeypatch.delenv("PYMLLM_API_KEY", raising=False)
    with pytest.raises(ConfigError, match="PYMLLM_API_KEY is not set"):
        compose(public)
    monkeypatch.setenv("PYMLLM_API_KEY", "secret")
    config = compose(public)
    assert (config.server.host, config.server.api_key) == ("0.0.0.0", "secret")


def test_the_walk_through_composes(
    blocks: Callable[..., list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYMLLM_API_KEY", raising=False)
    file = tmp_path / "walk.yaml"
    [text] = blocks("README.md", "yaml")
    file.write_text(text)
    config = compose(file)
    assert (config.model.path, config.cache.eviction, config.server.api_key) == ("Qwen/Qwen3-0.6B", "lru", None)
