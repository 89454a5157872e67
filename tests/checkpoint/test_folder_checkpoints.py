"""Folders of safetensors: what is read, and what each broken folder says."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from pymllm.checkpoint import open_checkpoint
from pymllm.config import LoadFormat, ModelConfig
from pymllm.errors import CheckpointError

TENSORS = {
    "a.weight": torch.arange(6, dtype=torch.float32).reshape(2, 3),
    "b.weight": torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
    "c.weight": torch.arange(4, dtype=torch.int8),
}
CONFIG = {"architectures": ["LlamaForCausalLM"], "torch_dtype": "bfloat16"}


def make(folder: Path, *, shards: bool = False, config: dict[str, Any] | None = None) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG if config is None else config))
    if not shards:
        save_file(TENSORS, folder / "model.safetensors")
        return folder
    names = list(TENSORS)
    placed = {names[0]: "model-1.safetensors", names[1]: "model-2.safetensors", names[2]: "model-2.safetensors"}
    for shard in set(placed.values()):
        save_file({name: TENSORS[name] for name in names if placed[name] == shard}, folder / shard)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": placed}))
    return folder


@pytest.mark.parametrize("shards", [False, True])
def test_tensors_come_back_as_they_were_saved(tmp_path: Path, shards: bool) -> None:
    checkpoint = open_checkpoint(ModelConfig(path=str(make(tmp_path, shards=shards))))
    found = dict(checkpoint.tensors())
    assert found.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor)
    assert sorted(checkpoint.tensor_names()) == sorted(TENSORS)
    assert checkpoint.tensor_shapes() == {"a.weight": (2, 3), "b.weight": (2,), "c.weight": (4,)}
    assert checkpoint.weight_bytes == 6 * 4 + 2 * 2 + 4
    assert checkpoint.has_weights


def test_only_wanted_tensors_are_read(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(ModelConfig(path=str(make(tmp_path, shards=True))))
    assert [name for name, _ in checkpoint.tensors(lambda name: name.startswith("b"))] == ["b.weight"]


def test_generation_config_is_read_and_may_be_missing(tmp_path: Path) -> None:
    model = ModelConfig(path=str(make(tmp_path)))
    assert open_checkpoint(model).generation_config == {}
    (tmp_path / "generation_config.json").write_text('{"temperature": 0.6}')
    assert open_checkpoint(model).generation_config == {"temperature": 0.6}


@pytest.mark.parametrize(
    ("config", "dtype"),
    [
        ({"torch_dtype": "bfloat16"}, torch.bfloat16),
        ({"dtype": "float16"}, torch.float16),
        ({"torch_dtype": "torch.float32"}, torch.float32),
        ({"text_config": {"dtype": "bfloat16"}}, torch.bfloat16),
        ({"torch_dtype": None}, None),
        ({}, None),
    ],
)
def test_declared_dtype_is_read_in_every_spelling(tmp_path: Path, config: dict[str, Any], dtype: object) -> None:
    assert open_checkpoint(ModelConfig(path=str(make(tmp_path, config=config)))).dtype == dtype


def test_an_unknown_dtype_is_refused_by_name(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(ModelConfig(path=str(make(tmp_path, config={"dtype": "nn"}))))
    with pytest.raises(CheckpointError, match=r"unknown dtype 'nn'.*model\.dtype"):
        _ = checkpoint.dtype


def test_quantization_config_is_found(tmp_path: Path) -> None:
    plain = open_checkpoint(ModelConfig(path=str(make(tmp_path / "plain"))))
    assert plain.quantization_config is None
    config = {"quantization_config": {"quant_method": "awq"}}
    quantized = open_checkpoint(ModelConfig(path=str(make(tmp_path / "awq", config=config))))
    assert quantized.quantization_config == {"quant_method": "awq"}


def test_random_weights_need_only_a_config(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    checkpoint = open_checkpoint(ModelConfig(path=str(tmp_path), load_format=LoadFormat.random))
    assert checkpoint.config == CONFIG
    assert not checkpoint.has_weights
    assert checkpoint.tensor_names() == []
    with pytest.raises(CheckpointError, match=r"no \*\.safetensors file.*load_format to random"):
        open_checkpoint(ModelConfig(path=str(tmp_path)))


@pytest.mark.parametrize("cut", [3, 60, -1])
def test_a_truncated_file_is_named(tmp_path: Path, cut: int) -> None:
    make(tmp_path)
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:cut])
    checkpoint = open_checkpoint(ModelConfig(path=str(tmp_path)))
    with pytest.raises(CheckpointError, match=r"model\.safetensors .*fetch it again"):
        checkpoint.tensor_shapes()


@pytest.mark.parametrize("junk", [b"not safetensors at all", (5).to_bytes(8, "little") + b"[1,2]", b""])
def test_a_corrupt_file_is_named(tmp_path: Path, junk: bytes) -> None:
    make(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(junk)
    with pytest.raises(CheckpointError, match=r"model\.safetensors is .*fetch it again"):
        open_checkpoint(ModelConfig(path=str(tmp_path))).tensor_shapes()


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    (make(tmp_path, shards=True) / "model-2.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"names 1 missing files \(model-2\.safetensors\)"):
        open_checkpoint(ModelConfig(path=str(tmp_path)))


def test_an_index_that_disagrees_with_its_shards_is_refused(tmp_path: Path) -> None:
    index = make(tmp_path, shards=True) / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    content["weight_map"]["a.weight"] = "model-2.safetensors"
    content["weight_map"]["z.weight"] = "model-1.safetensors"
    index.write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match=r"'a\.weight' is in model-2\.safetensors, where it is not"):
        open_checkpoint(ModelConfig(path=str(tmp_path))).tensor_shapes()


def test_an_index_cannot_name_files_outside_its_folder(tmp_path: Path) -> None:
    index = make(tmp_path, shards=True) / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a.weight": "../secret.safetensors"}}))
    with pytest.raises(CheckpointError, match="not a file of its own folder"):
        open_checkpoint(ModelConfig(path=str(tmp_path)))


def test_a_tensor_in_two_shards_is_refused(tmp_path: Path) -> None:
    make(tmp_path, shards=True)
    (tmp_path / "model.safetensors.index.json").unlink()
    save_file({"a.weight": TENSORS["a.weight"]}, tmp_path / "model-3.safetensors")
    with pytest.raises(CheckpointError, match=r"'a\.weight' is both in"):
        open_checkpoint(ModelConfig(path=str(tmp_path))).tensor_shapes()


def test_pickled_weights_are_not_loaded(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    torch.save({}, tmp_path / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match=r"pytorch_model\.bin.*convert them to safetensors"):
        open_checkpoint(ModelConfig(path=str(tmp_path)))


@pytest.mark.parametrize(("content", "says"), [("{", "cannot be read"), ("[1]", "does not hold a JSON object")])
def test_a_broken_config_is_named(tmp_path: Path, content: str, says: str) -> None:
    (make(tmp_path) / "config.json").write_text(content)
    with pytest.raises(CheckpointError, match=rf"config\.json {says}"):
        open_checkpoint(ModelConfig(path=str(tmp_path)))


def test_a_folder_without_config_is_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"holds no config\.json"):
        open_checkpoint(ModelConfig(path=str(tmp_path)))


@pytest.mark.parametrize(
    "path", ["/no/such/folder", "./nothing", "../nothing/here", "~/no/such/one", "nothing", "a/b/c"]
)
def test_a_missing_folder_is_not_looked_up_on_a_hub(path: str) -> None:
    with pytest.raises(CheckpointError, match="no folder"):
        open_checkpoint(ModelConfig(path=path))


def test_a_revision_of_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"model\.revision applies to a hub id only"):
        open_checkpoint(ModelConfig(path=str(make(tmp_path)), revision="main"))


def test_opening_imports_no_torch(tmp_path: Path) -> None:
    code = (
        "import sys; from pymllm.checkpoint import open_checkpoint; from pymllm.config import ModelConfig;"
        f"c = open_checkpoint(ModelConfig(path={str(make(tmp_path))!r})); assert len(c.tensor_names()) == 3;"
        "assert 'torch' not in sys.modules and 'transformers' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
