"""Which tokenizer a checkpoint gets, and which tokens end its answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from pymllm.checkpoint import Checkpoint, open_checkpoint
from pymllm.config import LoadFormat, ModelConfig
from pymllm.errors import CheckpointError
from pymllm.frontend.tokenizer import eos_token_ids, load_tokenizer


def save_tokenizer(folder: Path, words: list[str]) -> None:
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token=words[0]))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token=words[0], eos_token=words[1]).save_pretrained(folder)


def make(folder: Path, config: dict[str, Any] | None = None, **model: Any) -> tuple[Checkpoint, ModelConfig]:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config or {}))
    wanted = ModelConfig(path=str(folder), load_format=LoadFormat.random, **model)
    return open_checkpoint(wanted), wanted


@pytest.mark.parametrize("config", [{}, {"model_type": "llama"}, {"model_type": "unknown-to-transformers"}])
def test_the_folder_s_own_tokenizer_is_used(tmp_path: Path, config: dict[str, Any]) -> None:
    save_tokenizer(tmp_path, ["<unk>", "<end>", "hello", "world"])
    tokenizer = load_tokenizer(*make(tmp_path, config))
    assert tokenizer is not None
    assert tokenizer.encode("hello there world") == [2, 0, 3]


def test_tokenizer_path_comes_first(tmp_path: Path) -> None:
    save_tokenizer(tmp_path / "model", ["<unk>", "<end>", "hello"])
    save_tokenizer(tmp_path / "other", ["<unk>", "<end>", "x", "hello"])
    tokenizer = load_tokenizer(*make(tmp_path / "model", tokenizer_path=str(tmp_path / "other")))
    assert tokenizer is not None
    assert tokenizer.encode("hello") == [3]


def test_a_gguf_file_can_lend_its_tokenizer(tmp_path: Path, smollm2: Checkpoint) -> None:
    tokenizer = load_tokenizer(*make(tmp_path, tokenizer_path=str(smollm2.path)))
    assert tokenizer is not None
    assert tokenizer.encode("<|im_end|>") == [2]


def test_a_folder_without_a_vocabulary_has_no_tokenizer(tmp_path: Path) -> None:
    assert load_tokenizer(*make(tmp_path)) is None
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "Qwen2Tokenizer"}')
    assert load_tokenizer(*make(tmp_path)) is None


def test_a_wrong_tokenizer_path_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no folder '/no/such': check model\.tokenizer_path"):
        load_tokenizer(*make(tmp_path, tokenizer_path="/no/such"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(CheckpointError, match="holds no tokenizer"):
        load_tokenizer(*make(tmp_path, tokenizer_path=str(tmp_path / "empty")))
    with pytest.raises(CheckpointError, match=r"neither a folder nor a \.gguf file"):
        load_tokenizer(*make(tmp_path, tokenizer_path=str(tmp_path / "config.json")))


def test_a_broken_tokenizer_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{broken")
    with pytest.raises(CheckpointError, match="cannot be loaded") as caught:
        load_tokenizer(*make(tmp_path))
    assert "\n" not in str(caught.value)


def test_code_of_a_checkpoint_runs_only_when_trusted(tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"auto_map": {"AutoTokenizer": ["code.Mine", None]}}))
    (tmp_path / "vocab.txt").write_text("hello")
    (tmp_path / "code.py").write_text(
        f"from transformers import BertTokenizer\nopen({str(ran)!r}, 'w').close()\n"
        "class Mine(BertTokenizer):\n    pass\n"
    )
    with pytest.raises(CheckpointError, match="cannot be loaded"):
        load_tokenizer(*make(tmp_path))
    assert not ran.exists()
    tokenizer = load_tokenizer(*make(tmp_path, trust_remote_code=True))
    assert ran.exists()
    assert type(tokenizer).__name__ == "Mine"


@pytest.mark.parametrize(
    ("generation", "config", "expected"),
    [
        ({"eos_token_id": [7, 5]}, {"eos_token_id": 5}, [7, 5, 1]),
        ({}, {"eos_token_id": 9}, [9, 1]),
        ({}, {"text_config": {"eos_token_id": [8]}}, [8, 1]),
        ({"eos_token_id": None}, {}, [1]),
    ],
)
def test_end_tokens_are_the_union_of_all_that_name_one(
    tmp_path: Path, generation: dict[str, Any], config: dict[str, Any], expected: list[int]
) -> None:
    save_tokenizer(tmp_path, ["<unk>", "<end>"])
    (tmp_path / "generation_config.json").write_text(json.dumps(generation))
    checkpoint, model = make(tmp_path, config)
    assert eos_token_ids(checkpoint, load_tokenizer(checkpoint, model)) == expected
    assert eos_token_ids(checkpoint, None) == expected[:-1]
