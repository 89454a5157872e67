"""Launches the kernels on tensors. Nothing here waits for the device."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
import triton
from pymllm.interfaces import AttentionBatch, AttentionLayer
from pymllm.layers.kernels.dependent import launch_options
from torch import Tensor

from pymllm_attention_triton.cache import PagedCache
from pymllm_attention_triton.configs import (
    LaunchConfig,
    decode_config,
    device_of,
    halves,
    padded,
    prefill_config,
    varlen_config,
    write_rows,
)
from pymllm_attention_triton.decode import decode_kernel
from pymllm_attention_triton.prefill import prefill_kernel
from pymllm_attention_triton.varlen import varlen_kernel
from pymllm_attention_triton.write import write_kernel

LANES = 128
"""Requests that a program looks at together when it searches its own."""

LOG2_E = math.log2(math.e)

MERGED_ELEMENTS = 8192
"""Elements of the parts that are merged at once."""

PROGRAMS = 4
"""Decode programs that a multiprocessor should have at least, so that enough reads are in flight."""


class Step:
    """What a step's launches need of its batch.

    decodes: requests with one new token; chunks: the numbers of new tokens of the others; counters: [at least
    R * K] int32, zeros.
    """

    def __init__(self, batch: AttentionBatch, counters: Tensor) -> None:
        self.batch = batch
        self.counters = counters
        self.requests = len(batch.query_lens)
        self.chunks = [] if batch.decode_only else [length for length in batch.query_lens if length > 1]
        self.decodes = self.requests - len(self.chunks)


def decode_target(programs: int, kv_heads: int, requests: int) -> int:
    """Chunks into which all contexts together are cut: enough programs for the device, and two chunks a
    request, so that long and short contexts end together."""
    return max(1, programs // kv_heads, 2 * requests)


def decode(
    out: Tensor, q: Tensor, cache: PagedCache, layer: AttentionLayer, step: Step, config: LaunchConfig | None = None,
    programs: int = PROGRAMS,
) -> None:  # fmt: skip
    """Attention of the requests with one new token. q, out: [T, H, D]; programs: per multiprocessor, at least."""
    device = device_of(q.device)
    group, size = layer.heads // layer.kv_heads, layer.head_dim
    config = config or decode_config(device, size, q.element_size(), group)
    target = decode_target(device.processors * programs, layer.kv_heads, step.decodes)
    wide, rows = padded(size), triton.next_power_of_2(group)
    scratch = torch.empty(((target + step.requests) * layer.heads, wide + 1), dtype=torch.float32, device=q.device)
    sums = scratch.view(-1)
    batch = step.batch
    k_cache, v_cache = cache.layer(layer.index)
    decode_kernel[(layer.kv_heads, target + step.requests)](
        out, q, k_cache, v_cache, sums, sums[scratch.shape[0] * wide :], step.counters, batch.page_table,
        batch.context_lens_d, batch.query_starts, layer.scale * LOG2_E, batch.page_table.stride(0), step.requests,
        target, q.stride(0), k_cache.shape[2], cache.page_stride, cache.head_stride, layer.kv_heads, group,
        config.rows, rows, max(1, MERGED_ELEMENTS // (rows * wide)), size, wide, config.keys, LANES,
        bool(step.chunks), q.device.type == "cpu", config.stages, num_warps=config.warps, **launch_options(q.device),
    )  # fmt: skip


def prefill(
    out: Tensor, q: Tensor, cache: PagedCache, layer: AttentionLayer, step: Step, config: LaunchConfig | None = None
) -> None:
    """Attention of the requests with several new tokens. q, out: [T, H, D]."""
    group, size = layer.heads // layer.kv_heads, layer.head_dim
    config = config or prefill_config(device_of(q.device), size, q.element_size(), group, max(step.chunks))
    tokens = config.rows // group
    blocks = sum(-(-length // tokens) for length in step.chunks)
    batch = step.batch
    k_cache, v_cache = cache.layer(layer.index)
    prefill_kernel[(layer.kv_heads, blocks)](
        out, q, k_cache, v_cache, batch.page_table, batch.context_lens_d, batch.query_starts, layer.scale * LOG2_E,
        batch.page_table.stride(0), step.requests, q.stride(0), k_cache.shape[2], cache.page_stride,
        cache.head_stride, layer.kv_heads, group, size, padded(size), config.rows, config.keys, LANES,
        q.device.type == "cpu", config.stages, num_warps=config.warps, **launch_options(q.device),
    )  # fmt: skip


def packed(
    q: Tensor, k: Tensor, v: Tensor, starts: Sequence[int], on_device: Tensor, scale: float,
    config: LaunchConfig | None = None,
) -> Tensor:  # fmt: skip
    """Attention inside each sequence. q: [T, H, D]; k, v: [T, K, D]; starts: their bounds, on the host and on
    the device -> [T, H, D]."""
    heads, size = q.shape[1:]
    config = config or varlen_config(device_of(q.device), size, q.element_size())
    main, rest = halves(size)
    blocks = sum(-(-(end - start) // config.rows) for start, end in pairwise(starts))
    out = torch.empty((len(q), heads, size), dtype=q.dtype, device=q.device)
    if blocks:
        varlen_kernel[(blocks, heads)](
            out, q, k, v, on_device, scale * LOG2_E, len(starts) - 1, q.stride(0), k.stride(0), v.stride(0), heads,
            heads // k.shape[1], size, main, rest, config.rows, config.keys, LANES, q.device.type == "cpu",
            config.stages, num_warps=config.warps, **launch_options(q.device),
        )  # fmt: skip
    return out


def write(cache: PagedCache, index: int, k: Tensor, v: Tensor, slots: Tensor) -> None:
    """Store k and v, [T, K, D] each, in slots [T] of a layer."""
    k, v = (x if x.stride(2) == 1 and x.stride(1) == x.shape[2] else x.contiguous() for x in (k, v))
    kv_heads, size = k.shape[1:]
    k_cache, v_cache = cache.layer(index)
    rows = write_rows(device_of(k.device))
    write_kernel[(-(-len(slots) * kv_heads // rows),)](
        k_cache, v_cache, k, v, slots, len(slots), k.stride(0), v.stride(0), k_cache.shape[2], cache.page_stride,
        cache.head_stride, kv_heads, size, padded(size), rows, num_warps=4,
    )  # fmt: skip
