"""Which of FlashInfer's kernels serves what, and how much memory it works in. See benchmarks/ for the figures."""

from __future__ import annotations

import numpy as np
import torch

from pymllm_attention_flashinfer.kernels import CUDA_CORE_GROUPS, Heads
from pymllm_attention_flashinfer.plugin import Decode, Prefill
from pymllm_attention_flashinfer.requests import Requests

HEAD_SIZES = (64, 128, 256)
"""Head sizes that all the kernels are made for."""

DECODE_PLAN_BYTES = 1 << 20
CHUNK_PLAN_BYTES = 8 << 20
"""Device memory for the plan of a step's decodes, and of its chunks (tens of thousands of tiles)."""

CUDA_CORE_REQUESTS = 32
"""Most decodes of a step for which CUDA cores are the faster choice."""

GATHER_WORK = 16 * 4096
"""Query heads times tokens of a prompt from which on packing it pays."""

CUDA_CORE_BLOCKS, TENSOR_CORE_BLOCKS = 32, 2
"""Most thread blocks on a multiprocessor that the library plans split keys for."""


def prefill_generation(wanted: Prefill, device: torch.device) -> str:
    """ "fa2" or "fa3". Raises ValueError for fa3 on a GPU that is not a Hopper."""
    hopper = torch.cuda.get_device_capability(device) == (9, 0)
    if wanted is Prefill.fa3 and not hopper:
        raise ValueError("attention.prefill: fa3 needs a Hopper GPU (compute capability 9.0); set it to auto or fa2")
    return "fa3" if wanted is Prefill.fa3 or (wanted is Prefill.auto and hopper) else "fa2"


def decodes_on_cuda_cores(wanted: Decode, heads: Heads, requests: int) -> bool:
    """Whether a step of so many decodes runs on CUDA cores.

    Their kernel needs less time to start, but it is slower where three or more query heads share keys, and where
    lengths differ: it splits the keys of a request only while there are few. Raises ValueError if it is asked
    for and does not cover the heads.
    """
    covered = heads.group in CUDA_CORE_GROUPS
    if wanted is Decode.cuda_cores and not covered:
        groups = ", ".join(map(str, sorted(CUDA_CORE_GROUPS)))
        raise ValueError(
            f"attention.decode: cuda_cores cannot serve {heads.group} query heads for each key/value head "
            f"(it can: {groups}); set it to auto or tensor_cores"
        )
    if wanted is Decode.auto:
        return heads.group <= 2 and requests <= CUDA_CORE_REQUESTS
    return wanted is Decode.cuda_cores


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


def graph_plan_bytes(requests: int) -> int:
    """Device memory for the plan of captured decodes: a few integers a thread block, and blocks are bounded."""
    return (128 << 10) + 64 * requests


def partial_bytes(heads: Heads, multiprocessors: int, requests: int) -> int:
    """Memory for float32 partial results [blocks, rows of a tile, D + 1] where the keys of a request are split.

    requests: decodes of the step. Both kernels split only as far as it fills the GPU; captured tensor-core
    decodes reserve two tiles a request besides.
    """
    cores = heads.group * CUDA_CORE_BLOCKS * multiprocessors
    split = TENSOR_CORE_BLOCKS * multiprocessors // heads.kv + 1
    tile = next(rows for rows in (16, 64, 128, heads.group) if rows >= heads.group)
    captured = heads.query * max(split, 2 * requests) * tile
    chunks = heads.query * split * 128
    return 4 * (heads.size + 1) * max(cores, captured, chunks) + 1024
