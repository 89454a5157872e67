"""A GGUF file as a checkpoint: Hugging Face names, weights dequantized one tensor at a time."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize

from pymllm.checkpoint.base import Checkpoint
from pymllm.checkpoint.gguf_config import ROPE_FREQS, read_config, read_generation_config
from pymllm.checkpoint.gguf_file import GgufFile, GgufTensor
from pymllm.errors import CheckpointError

if TYPE_CHECKING:
    from torch import Tensor

_WHOLE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_BLOCK = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")
_ROTATED = re.compile(r"blk\.\d+\.attn_([qk])\.(weight|bias)")


class GgufCheckpoint(Checkpoint):
    """A ``.gguf`` file of a llama, qwen2 or qwen3 model. Quantized tensors come out in float32, others as
    they are stored. Raises CheckpointError for what cannot be read, naming it."""

    has_weights = True

    def __init__(self, path: Path, name: str) -> None:
        self.path = path
        self.name = name
        self.file = GgufFile(path)
        self.config = read_config(self.file)
        self.generation_config = read_generation_config(self.file)
        # rope_freqs is part of the configuration (see gguf_config), not a weight.
        self._tensors = {hf_name(key): tensor for key, tensor in self.file.tensors.items() if key != ROPE_FREQS}

    def tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: tensor.shape for name, tensor in self._tensors.items()}

    @property
    def weight_bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self._tensors.values())

    def tensors(self, wanted: Callable[[str], bool] | None = None) -> Iterator[tuple[str, Tensor]]:
        for name, tensor in self._tensors.items():
            if wanted is None or wanted(name):
                yield name, self._load(tensor)

    def _load(self, tensor: GgufTensor) -> Tensor:
        import torch

        stored = self.file.read(tensor)
        plain = {
            GGMLQuantizationType.F32: torch.float32,
            GGMLQuantizationType.F16: torch.float16,
            GGMLQuantizationType.BF16: torch.bfloat16,
        }.get(tensor.type)
        if plain is not None:
            values = torch.from_numpy(stored.copy()).view(plain).reshape(tensor.shape)
        else:
            values = torch.from_numpy(self._dequantize(tensor, stored))
        rotated = _ROTATED.fullmatch(tensor.name)
        if rotated is None or self.file.architecture != "llama":
            return values
        count = self.config["num_attention_heads" if rotated[1] == "q" else "num_key_value_heads"]
        return split_halves(values, count)

    def _dequantize(self, tensor: GgufTensor, stored: np.ndarray) -> np.ndarray:
        try:
            return np.asarray(dequantize(stored, tensor.type), np.float32).reshape(tensor.shape)
        except NotImplementedError as error:
            raise CheckpointError(
                f"{self.path} stores {tensor.name} as {tensor.type.name}, which the gguf package cannot dequantize"
            ) from error


def hf_name(name: str) -> str:
    """``blk.0.attn_q.weight`` -> ``model.layers.0.self_attn.q_proj.weight``. A name that has no counterpart
    stays as it is, so that the completeness check reports it."""
    block = _BLOCK.fullmatch(name)
    if block is not None and block[2] in _LAYER:
        return f"model.layers.{block[1]}.{_LAYER[block[2]]}.{block[3]}"
    stem, _, kind = name.rpartition(".")
    return f"{_WHOLE[stem]}.{kind}" if stem in _WHOLE and kind in ("weight", "bias") else name


def split_halves(rows: Tensor, heads: int) -> Tensor:
    """Reorder the rows ([heads * head_dim, ...]) of a llama GGUF's q or k projection.

    GGUF pairs the rotated dimensions as neighbours (0, 1), (2, 3) ...; Hugging Face pairs the halves of a
    head, (0, d/2), (1, d/2 + 1) ...
    """
    half = rows.shape[0] // heads // 2
    return rows.reshape(heads, half, 2, *rows.shape[1:]).transpose(1, 2).reshape(rows.shape)
