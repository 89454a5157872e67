"""Hub ids: offline errors for real, and snapshots from a cache laid out as huggingface_hub does."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import huggingface_hub.constants
import pytest
import torch
from safetensors.torch import save_file

from pymllm.checkpoint import open_checkpoint
from pymllm.config import Hub, LoadFormat, ModelConfig
from pymllm.errors import CheckpointError

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty hub cache, and a hub address where nothing listens: unreachable, on any machine."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    return tmp_path


def cached(cache: Path, revision: str) -> None:
    repository = cache / "models--someone--tiny"
    snapshot = repository / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / revision).write_text(COMMIT)
    (snapshot / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"]}))
    save_file({"a.weight": torch.ones(2)}, snapshot / "model.safetensors")


@pytest.mark.parametrize("offline", [False, True])
def test_an_unreachable_hub_says_so_in_one_line(offline: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", offline)
    with pytest.raises(
        CheckpointError, match=r"hub cannot be reached and 'someone/tiny' is not in its local"
    ) as caught:
        open_checkpoint(ModelConfig(path="someone/tiny"))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("revision", [None, "v2"])
def test_a_cached_snapshot_needs_no_network(cache: Path, revision: str | None) -> None:
    cached(cache, revision or "main")
    checkpoint = open_checkpoint(ModelConfig(path="someone/tiny", revision=revision))
    assert checkpoint.name == "someone/tiny"
    assert checkpoint.path.name == COMMIT
    assert checkpoint.tensor_names() == ["a.weight"]


def test_another_revision_is_not_served_from_the_cache(cache: Path) -> None:
    cached(cache, "main")
    with pytest.raises(CheckpointError, match="'someone/tiny' at 'v2' is not in its local cache"):
        open_checkpoint(ModelConfig(path="someone/tiny", revision="v2"))


def test_a_folder_of_that_name_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "someone" / "tiny"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    checkpoint = open_checkpoint(ModelConfig(path="someone/tiny", load_format=LoadFormat.random))
    assert checkpoint.path == Path("someone/tiny")


def test_a_gguf_repository_is_refused_by_name() -> None:
    with pytest.raises(CheckpointError, match=r"download the one \.gguf file of 'someone/tiny'"):
        open_checkpoint(ModelConfig(path="someone/tiny", load_format=LoadFormat.gguf))


def test_modelscope_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "modelscope", None)
    with pytest.raises(CheckpointError, match=r"pip install 'pymllm\[modelscope\]'"):
        open_checkpoint(ModelConfig(path="someone/tiny", hub=Hub.modelscope))
