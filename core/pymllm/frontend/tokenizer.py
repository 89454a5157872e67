"""The tokenizer that belongs to a checkpoint, and the tokens that end an answer."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from pymllm.checkpoint.base import Checkpoint
from pymllm.config import ModelConfig
from pymllm.errors import CheckpointError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

logger = logging.getLogger(__name__)

_VOCABULARIES = (
    "tokenizer.json",
    "tokenizer.model",
    "vocab.json",
    "vocab.txt",
    "spiece.model",
    "*.tiktoken",
    "tekken.json",
)


def load_tokenizer(checkpoint: Checkpoint, model: ModelConfig) -> PreTrainedTokenizerBase | None:
    """The tokenizer at ``model.tokenizer_path``, else the checkpoint's own; None if that has none (only
    token ids can then be served). No network is used.

    Raises CheckpointError when tokenizer_path is not there or holds no tokenizer, or a tokenizer cannot be
    loaded.
    """
    if model.tokenizer_path is None:
        return _load(checkpoint.path, model.trust_remote_code)
    path = Path(model.tokenizer_path).expanduser()
    if not path.exists():
        raise CheckpointError(f"no folder '{model.tokenizer_path}': check model.tokenizer_path")
    tokenizer = _load(path, model.trust_remote_code)
    if tokenizer is None:
        raise CheckpointError(f"'{model.tokenizer_path}' holds no tokenizer: check model.tokenizer_path")
    return tokenizer


def eos_token_ids(checkpoint: Checkpoint, tokenizer: PreTrainedTokenizerBase | None) -> list[int]:
    """Tokens that end an answer: all that generation_config.json, config.json and the tokenizer name.

    The union, as in vLLM: a chat model's generation_config.json often adds an end-of-turn token to the
    end-of-text token that the others name.
    """
    text = checkpoint.config.get("text_config") or {}
    found: list[int | None] = []
    for section in (checkpoint.generation_config, checkpoint.config, text):
        value = section.get("eos_token_id")
        found += value if isinstance(value, list) else [value]
    found.append(tokenizer.eos_token_id if tokenizer is not None else None)
    return list(dict.fromkeys(int(token) for token in found if token is not None))


def _load(path: Path, trust_remote_code: bool) -> PreTrainedTokenizerBase | None:
    if path.is_file():
        if path.suffix != ".gguf":
            raise CheckpointError(f"'{path}' is neither a folder nor a .gguf file: check model.tokenizer_path")
        from pymllm.checkpoint.gguf_file import GgufFile
        from pymllm.checkpoint.gguf_tokenizer import build_tokenizer

        return build_tokenizer(GgufFile(path))
    if not _has_tokenizer(path, trust_remote_code):
        logger.info("%s has no tokenizer: only token ids can be served", path)
        return None
    from transformers import AutoTokenizer

    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
            str(path), trust_remote_code=trust_remote_code, local_files_only=True
        )
    except Exception as error:  # a broken file raises whatever the format's parser raises
        reason = " ".join(str(error).split())[:300]
        raise CheckpointError(f"the tokenizer in '{path}' cannot be loaded: {reason}") from error
    return tokenizer


def _has_tokenizer(folder: Path, trust_remote_code: bool) -> bool:
    """Whether there is a vocabulary: settings alone (tokenizer_config.json) make no tokenizer, unless they
    name code that brings its own vocabulary."""
    if any(next(folder.glob(pattern), None) for pattern in _VOCABULARIES):
        return True
    settings = folder / "tokenizer_config.json"
    return trust_remote_code and settings.is_file() and '"auto_map"' in settings.read_text(encoding="utf-8")
