"""Which of FlashInfer's kernels serves what, and how much memory it works in. See benchmarks/ for the figures."""

from __future__ import annotations

import numpy as np
import torch

from pymllm.errors import ConfigError
from pymllm.interfaces import KVDtype
from pymllm_attention_flashinfer.kernels import CUDA_CORE_GROUPS, Heads
from pymllm_attention_flashinfer.plugin import Decode, FlashInferOptions, Prefill
from pymllm_attention_flashinfer.requests import Requests

HEAD_SIZES = (64, 128, 256)
"""Head sizes that all the kernels are made for."""

DECODE_PLAN_BYTES = 1 << 20
CHUNK_PLAN_BYTES = 8 << 20
"""Device memory for the plan of a step's decodes, and of its chunks (tens of thousands of tiles)."""

GATHER_WORK = 16 * 4096
"""Query heads times tokens of a prompt from which on packing it pays."""

CUDA_CORE_BLOCKS, TENSOR_CORE_BLOCKS = 32, 2
"""Most thread blocks on a multiprocessor that the library plans split keys for."""


def prefill_generation(wanted: Prefill, device: torch.device, keys: torch.dtype) -> str:
    """ "fa2" or "fa3". keys: dtype of keys and values; 8-bit ones fa3 multiplies only with 8-bit queries.

    Raises ConfigError for fa3 on a GPU that is not a Hopper, or with 8-bit keys.
    """
    hopper = torch.cuda.get_device_capability(device) == (9, 0)
    if wanted is Prefill.fa3 and not hopper:
        raise ConfigError("attention.prefill: fa3 needs a Hopper GPU (compute capability 9.0); set it to auto or fa2")
    if wanted is Prefill.fa3 and keys.itemsize == 1:
        raise ConfigError(
            "attention.prefill: fa3 cannot read the cache of attention.kv_dtype: fp8; set it to auto or fa2"
        )
    return "fa3" if hopper and wanted is not Prefill.fa2 and keys.itemsize > 1 else "fa2"


def own_decode(wanted: Decode, heads: Heads) -> str | None:
    """Which of the library's kernels serves decodes, "cuda_cores" or "tensor_cores"; None: the triton plugin's kernel.

    That one was faster than both on an H200 at any number of requests (see benchmarks/). Raises ConfigError for one
    that does not cover the heads.
    """
    if wanted is Decode.cuda_cores and heads.group not in CUDA_CORE_GROUPS:
        groups = ", ".join(map(str, sorted(CUDA_CORE_GROUPS)))
        raise ConfigError(
            f"attention.decode: cuda_cores cannot serve {heads.group} query heads for each key/value head "
            f"(it can: {groups}); set it to auto or tensor_cores"
        )
    return None if wanted in (Decode.auto, Decode.triton) else wanted.value


def refuse_with_codes(options: FlashInferOptions, kv_dtype: KVDtype) -> None:
    """Raises ConfigError where a cache of codes (int8, int4), which only the triton plugin's kernels read, is asked for
    together with a kernel of the library."""
    cannot = f"cannot read the cache of attention.kv_dtype: {kv_dtype.value}"
    if options.prefill is not Prefill.auto:
        raise ConfigError(
            f"attention.prefill: {options.prefill.value} {cannot}; set it to auto, which takes triton's kernel"
        )
    if options.decode not in (Decode.auto, Decode.triton):
        raise ConfigError(f"attention.decode: {options.decode.value} {cannot}; set it to auto or triton")


def gathers_prompts(heads: Heads, requests: Requests) -> bool:
    """Whether fa3 should take prefill chunks from a packed copy of their keys and values, not from the pages.

    It computes faster on packed ones (the chip's copy engine reads them), by a time that grows with the square of
    a prompt; the copy's grows with its length. Only for prompts without a prefix: their copy is never larger
    than in the step that memory was measured with.
    """
    lens = requests.context_lens.astype(np.int64)
    if requests.rows != int(lens.sum()):
        return False
    return heads.query * int((lens * lens).sum()) >= GATHER_WORK * requests.rows


def graph_plan_bytes(tokens: int) -> int:
    """Device memory for the plan of a captured step: a few integers a thread block, and blocks are bounded."""
    return (128 << 10) + 64 * tokens


def partial_bytes(heads: Heads, multiprocessors: int, requests: int, captured_tokens: int = 0) -> int:
    """Memory for float32 partial results [blocks, rows of a tile, D + 1] where the keys of a request are split.

    requests: decodes of the step. captured_tokens: of a captured step of prompts. All kernels split only as far as it
    fills the GPU; captured tensor-core decodes reserve two tiles a request besides, captured fa2 prompts all their
    rows and a tile a request.
    """
    cores = heads.group * CUDA_CORE_BLOCKS * multiprocessors
    split = TENSOR_CORE_BLOCKS * multiprocessors // heads.kv + 1
    tile = next(rows for rows in (16, 64, 128, heads.group) if rows >= heads.group)
    captured = heads.query * max(split, 2 * requests) * tile
    chunks = heads.query * max(split * 128, captured_tokens * heads.group + requests * 128)
    return 4 * (heads.size + 1) * max(cores, captured, chunks) + 1024
