"""package: paths name what an installed package brings along."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from pymllm.checkpoint import open_checkpoint
from pymllm.config import ModelConfig
from pymllm.errors import CheckpointError
from pymllm.testing import make_tiny_checkpoint


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of sys.path with the package ``brought``, whose import fails."""
    folder = tmp_path / "site"
    (folder / "brought").mkdir(parents=True)
    (folder / "brought" / "__init__.py").write_text("raise SystemError('imported')")
    make_tiny_checkpoint(folder / "brought" / "demo" / "model")
    monkeypatch.syspath_prepend(str(folder))
    return folder


def test_a_folder_in_a_package_is_a_checkpoint_and_the_package_is_not_imported(site: Path) -> None:
    checkpoint = open_checkpoint(ModelConfig(path="package:brought/demo/model"))
    assert checkpoint.path == site / "brought" / "demo" / "model"
    assert checkpoint.name == "package:brought/demo/model"
    assert checkpoint.config["architectures"] == ["LlamaForCausalLM"]
    assert "brought" not in sys.modules


@pytest.mark.parametrize(
    "path, message",
    [
        ("package:brought", "'package:brought' is not of the form package:NAME/FOLDER"),
        ("package:brought.demo/model", "is not of the form package:NAME/FOLDER"),
        ("package:brought/../brought/demo/model", "leads out of the package: name a folder inside it"),
        ("package:brought//etc", "leads out of the package"),
        ("package:no_such_package/model", "no package 'no_such_package' is installed: install the distribution"),
        ("package:__main__/model", "no package '__main__' is installed"),
        ("package:brought/missing", "package 'brought' holds no 'missing': check model.path"),
        ("package:json/tool", "package 'json' holds no 'tool'"),
        ("package:brought/demo", "'package:brought/demo' holds no config.json: it is not a checkpoint folder"),
    ],
)
def test_what_cannot_be_found_is_one_line(site: Path, path: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # As where a file is run as a script, not with python -m.
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", None)
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(ModelConfig(path=path))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_revision_is_refused(site: Path) -> None:
    with pytest.raises(CheckpointError, match="revision applies to a hub id only"):
        open_checkpoint(ModelConfig(path="package:brought/demo/model", revision="main"))


def test_a_folder_of_that_name_does_not_hide_it(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = site.parent / "package:brought" / "demo"
    other.mkdir(parents=True)
    shutil.copytree(site / "brought" / "demo" / "model", other / "model")
    monkeypatch.chdir(site.parent)
    assert open_checkpoint(ModelConfig(path="package:brought/demo/model")).path.is_relative_to(site)
