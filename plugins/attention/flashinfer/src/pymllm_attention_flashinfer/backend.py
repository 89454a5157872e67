"""The ``flashinfer`` attention backend: FlashInfer's paged decode and prefill kernels.

A step's decodes and its prefill chunks are served by a kernel each. Everything is planned from the host lists
of a batch, so nothing waits for the device. Memory that no token of a request was written to may hold anything,
NaN included, and never reaches a result.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pymllm.errors import PluginError
from pymllm.interfaces import (
    AttentionBackend,
    AttentionBatch,
    AttentionCapabilities,
    AttentionContext,
    AttentionLayer,
    KVGroup,
)
from pymllm.layers.kernels import write_qkv
from pymllm_attention_flashinfer.cache import PagedCache
from pymllm_attention_flashinfer.kernels import Heads
from pymllm_attention_flashinfer.library import require
from pymllm_attention_flashinfer.packed import PackedAttention
from pymllm_attention_flashinfer.plugin import FlashInferOptions
from pymllm_attention_flashinfer.policy import HEAD_SIZES
from pymllm_attention_flashinfer.steps import Planner, Step


class FlashInferAttention(AttentionBackend):
    """Paged attention through FlashInfer, on NVIDIA GPUs. The cache has the dtype of the activations."""

    capabilities = AttentionCapabilities(
        devices=frozenset({"cuda"}),
        dtypes=frozenset({torch.bfloat16, torch.float16}),
        head_dims=frozenset(HEAD_SIZES),
        graph_capture=True,
    )

    def __init__(self, options: FlashInferOptions, context: AttentionContext) -> None:
        """Raises PluginError if FlashInfer is not installed or the device is not a GPU."""
        require()
        super().__init__(context)
        if context.device.type != "cuda":
            raise PluginError("attention plugin 'flashinfer' runs on CUDA devices; set attention.plugin to another")
        self._planner = Planner(options, context.dtype, context.device, context.page_size)
        self._packed = PackedAttention(self._planner)
        self._caches: dict[str, PagedCache] = {}
        self._step: Step | None = None

    def page_bytes(self, group: KVGroup) -> int:
        """Bytes of one page in all layers: keys and values, nothing else."""
        elements = 2 * group.layers * group.kv_heads * group.head_dim * self.context.page_size
        return elements * self.context.dtype.itemsize

    def allocate(self, group: KVGroup, pages: int) -> None:
        """Allocate a group's cache. Raises torch.OutOfMemoryError."""
        self._caches.pop(group.name, None)
        self._caches[group.name] = PagedCache(group, pages, self.context)

    def plan(self, batch: AttentionBatch) -> None:
        """Divide the work of a step; see ``AttentionBatch.graph_key`` for steps in CUDA graphs.

        Raises ValueError for a graph_key on a step that is not decodes alone.
        """
        self._step = self._planner.step(batch)

    def write(self, layer: AttentionLayer, k: Tensor, v: Tensor) -> None:
        """Store k and v, [T, K, D] each, in the planned slots."""
        self._caches[layer.group].write(layer.index, self._planned.batch.slots, k, v)

    def produce(self, layer: AttentionLayer, qkv: Tensor, positions: Tensor) -> Tensor:
        """Norm, rotate and write in one kernel; see the interface."""
        q_norm, k_norm, rope = layer.q_norm, layer.k_norm, layer.rope
        if q_norm is not None and k_norm is not None and q_norm.eps != k_norm.eps:
            return super().produce(layer, qkv, positions)
        norm = k_norm if q_norm is None else q_norm
        k_cache, v_cache = self._caches[layer.group].layer(layer.index)
        return write_qkv(
            qkv,
            torch.empty(len(qkv), layer.heads, layer.head_dim, dtype=qkv.dtype, device=qkv.device),
            k_cache,
            v_cache,
            self._planned.batch.slots,
            positions,
            None if rope is None else rope.cos_sin,
            None if q_norm is None else q_norm.weight,
            None if k_norm is None else k_norm.weight,
            0.0 if norm is None else norm.eps,
        )

    def attend(self, layer: AttentionLayer, q: Tensor) -> Tensor:
        """Causal attention of q, [T, H, D], over the cache -> [T, H, D]. Raises RuntimeError if it is captured
        in a CUDA graph before a layer of this shape ever ran."""
        parts = self._planner.parts(self._planned, Heads(layer.heads, layer.kv_heads, layer.head_dim))
        k, v = self._caches[layer.group].layer(layer.index)
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        for part in parts:
            part.kernel.run(part.memory, part.plan, q[part.rows], k, v, part.at, out[part.rows], layer.scale)
        return out

    def copy_pages(self, source: Sequence[int], target: Sequence[int]) -> None:
        """Copy whole pages in every group and layer."""
        if source:
            for cache in self._caches.values():
                cache.copy_pages(source, target)

    def varlen(self, q: Tensor, k: Tensor, v: Tensor, starts: Sequence[int], scale: float) -> Tensor:
        """Non-causal attention inside each sequence. Raises ValueError for a head size above 256."""
        return self._packed(q, k, v, starts, scale)

    @property
    def _planned(self) -> Step:
        assert self._step is not None, "plan() comes first"
        return self._step
