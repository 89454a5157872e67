"""Launches of the kernels on tensors. Nothing here waits for the device."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch
import triton
from torch import Tensor

from pymllm.interfaces import AttentionBatch, AttentionLayer
from pymllm.layers.kernels.codes import code_width
from pymllm.layers.kernels.dependent import launch_options
from pymllm_attention_triton.cache import PagedCache
from pymllm_attention_triton.configs import LaunchConfig, device_of, halves, padded, write_rows
from pymllm_attention_triton.decode import assign_kernel, decode_kernel
from pymllm_attention_triton.prefill import prefill_kernel
from pymllm_attention_triton.varlen import varlen_kernel
from pymllm_attention_triton.write import write_kernel

LOG2_E = math.log2(math.e)

MERGED_ELEMENTS = 2048
"""Elements of the parts of a request that a warp merges at once."""


@dataclass(frozen=True)
class Launch:
    """A kernel and all that it is launched with."""

    kernel: Any
    grid: tuple[int, ...]
    arguments: tuple[Any, ...]
    options: dict[str, Any]

    def run(self) -> None:
        """Launch it, compiling it first if it was not."""
        self.kernel[self.grid](*self.arguments, **self.options)

    def compile(self) -> None:
        """Compile it only."""
        self.kernel.warmup(*self.arguments, grid=self.grid, **self.options)


@dataclass
class LayerShape:
    """What compiling needs of an ``AttentionLayer``: its first layer's place, no weights."""

    group: str
    heads: int
    kv_heads: int
    head_dim: int
    index: int = 0
    scale: float = 1.0
    q_norm: Any = None
    k_norm: Any = None
    rope: Any = None


class Step:
    """What a step's launches need of its batch.

    requests: with those of padding. decodes: requests with one new token; prompts: whether there are others; longest:
    context of those (captured ones: new tokens, padded). counters: [at least R * K] int32, zeros. chunks: what the
    decodes are cut into, by the number of KV heads and the launch parameters, apart in a graph that is captured;
    filled by the first layer that asks.
    """

    def __init__(self, batch: AttentionBatch, counters: Tensor) -> None:
        self.batch = batch
        self.counters = counters
        self.chunks: dict[tuple[int, LaunchConfig, bool], Tensor] = {}
        self.requests = len(batch.query_lens)
        self.longest = 0
        self._chunks: list[int] = []
        self._padded = None if batch.graph_key is None or batch.graph_key.decodes else batch.graph_key
        if self._padded is not None:
            self.requests, self.longest, self.decodes = *self._padded, 0
        elif not batch.decode_only:
            self._chunks = [length for length in batch.query_lens if length > 1]
            lengths = zip(batch.query_lens, batch.context_lens)
            self.longest = max((context for length, context in lengths if length > 1), default=0)
        if self._padded is None:
            self.decodes = self.requests - len(self._chunks)

    @property
    def prompts(self) -> bool:
        """Whether some requests have several new tokens."""
        return self._padded is not None or bool(self._chunks)

    def blocks(self, tokens: int) -> int:
        """Blocks of so many tokens that the prompts are cut into; the most there may be of a captured step."""
        if self._padded is not None:
            return -(-self._padded.tokens // tokens) + self._padded.requests - 1
        return sum(-(-length // tokens) for length in self._chunks)


def row_columns(cache: PagedCache, head_dim: int) -> int:
    """Columns that a row of the cache is computed as: numbers, or words of two bytes of codes, padded."""
    return padded(code_width(head_dim, cache.bits) // 2) if cache.bits else padded(head_dim)


def strides(cache: PagedCache) -> tuple[int, int]:
    """Of a page and a head, in what a row's columns are."""
    each = 2 if cache.bits else 1
    return cache.page_stride // each, cache.head_stride // each


def decode_target(programs: int, kv_heads: int, requests: int) -> int:
    """Chunks into which all contexts together are cut: enough for that many programs, and two chunks a
    request, so that long and short contexts end together."""
    return max(1, programs // kv_heads, 2 * requests)


def assign(step: Step, kv_heads: int, config: LaunchConfig, device: torch.device) -> Launch:
    """Cut the contexts of the requests with one new token into chunks: fills the first argument."""
    target = decode_target(device_of(device).processors * config.programs, kv_heads, step.decodes)
    batch, items = step.batch, target + step.requests
    chunks = torch.empty((items, 4), dtype=torch.int32, device=device)
    arguments = (
        chunks, batch.context_lens_d, batch.query_starts, step.requests, target, config.keys, config.lanes,
        step.prompts,
    )  # fmt: skip
    return _launch(assign_kernel, (items,), arguments, device, replace(config, warps=1))


def decode(
    out: Tensor, q: Tensor, cache: PagedCache, layer: AttentionLayer, step: Step, chunks: Tensor, config: LaunchConfig
) -> Launch:
    """Attention of the requests with one new token. q, out: [T, H, D]; chunks: as ``assign`` cut them."""
    group, size, items = layer.heads // layer.kv_heads, layer.head_dim, len(chunks)
    columns, rows = row_columns(cache, size), triton.next_power_of_2(group)
    wide = columns * 16 // cache.bits if cache.bits else columns
    results = items * layer.heads
    scratch = torch.empty(results * (wide + 1), dtype=torch.float32, device=q.device)
    batch = step.batch
    arguments = (
        out, q, cache.rows(layer.index), cache.scales(layer.index)[0], scratch, scratch[results * wide :],
        step.counters, chunks, batch.page_table, batch.context_lens_d, batch.query_starts, layer.scale * LOG2_E,
        batch.page_table.stride(0), step.requests, cache.bits, q.stride(0), cache.page_size, *strides(cache),
        layer.kv_heads, group, config.rows, rows,
        max(1, MERGED_ELEMENTS * config.warps // (rows * wide)), size, columns, config.keys, step.prompts,
        q.device.type == "cpu", config.stages,
    )  # fmt: skip
    return _launch(decode_kernel, (layer.kv_heads, items), arguments, q.device, config)


def prefill(
    out: Tensor, q: Tensor, cache: PagedCache, layer: AttentionLayer, step: Step, config: LaunchConfig
) -> Launch:
    """Attention of the requests with several new tokens. q, out: [T, H, D]."""
    group, size = layer.heads // layer.kv_heads, layer.head_dim
    batch = step.batch
    arguments = (
        out, q, cache.rows(layer.index), cache.scales(layer.index)[0], batch.page_table, batch.context_lens_d,
        batch.query_starts, layer.scale * LOG2_E, batch.page_table.stride(0), step.requests, cache.bits, q.stride(0),
        cache.page_size, *strides(cache), layer.kv_heads, group, size, row_columns(cache, size), config.rows,
        config.keys, config.lanes, q.device.type == "cpu", config.stages,
    )  # fmt: skip
    return _launch(prefill_kernel, (layer.kv_heads, step.blocks(config.rows // group)), arguments, q.device, config)


def packed(
    out: Tensor, q: Tensor, k: Tensor, v: Tensor, starts: Sequence[int], on_device: Tensor, scale: float,
    config: LaunchConfig,
) -> Launch:  # fmt: skip
    """Attention inside each sequence. out, q: [T, H, D]; k, v: [T, K, D]; starts: bounds of the sequences, at
    least one of them not empty, on the host and on the device."""
    heads, size = q.shape[1:]
    blocks = sum(-(-(end - start) // config.rows) for start, end in pairwise(starts))
    arguments = (
        out, q, k, v, on_device, scale * LOG2_E, len(starts) - 1, q.stride(0), k.stride(0), v.stride(0), heads,
        heads // k.shape[1], size, *halves(size), config.rows, config.keys,
        config.lanes, q.device.type == "cpu",
        config.stages,
    )  # fmt: skip
    return _launch(varlen_kernel, (blocks, heads), arguments, q.device, config)


def write(cache: PagedCache, index: int, k: Tensor, v: Tensor, slots: Tensor) -> Launch:
    """Store k and v, [T, K, D] each, in slots [T] of a layer."""
    kv_heads, size = k.shape[1:]
    rows = write_rows(device_of(k.device))
    k_cache, v_cache = cache.layer(index)
    columns = padded(code_width(size, cache.bits) if cache.bits else size)
    arguments = (
        k_cache, v_cache, *cache.scales(index), k, v, slots, len(slots), cache.bits, k.stride(0), v.stride(0),
        cache.page_size, cache.page_stride, cache.head_stride, kv_heads, size, columns, rows,
    )  # fmt: skip
    return Launch(write_kernel, (-(-len(slots) * kv_heads // rows),), arguments, {"num_warps": 4})


def _launch(
    kernel: Any, grid: tuple[int, ...], arguments: tuple[Any, ...], device: torch.device, config: LaunchConfig
) -> Launch:
    options = {"num_warps": config.warps, **launch_options(device)}
    return Launch(kernel, grid, arguments, {**options, "maxnreg": config.registers} if config.registers else options)
