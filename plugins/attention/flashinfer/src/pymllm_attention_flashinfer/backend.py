"""The ``flashinfer`` attention backend: FlashInfer's prefill over the pages of the ``triton`` backend, and its decode.

A step's decodes and its prefill chunks are served by a kernel each. FlashInfer's are planned from the host lists of a
batch, so nothing waits for the device. Memory that no token of a request was written to may hold anything, NaN
included, and never reaches a result.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from pymllm.errors import PluginError
from pymllm.interfaces import AttentionBatch, AttentionContext, AttentionLayer, KVGroup
from pymllm_attention_flashinfer.kernels import Heads
from pymllm_attention_flashinfer.library import require
from pymllm_attention_flashinfer.packed import PackedAttention
from pymllm_attention_flashinfer.plugin import FlashInferOptions
from pymllm_attention_flashinfer.policy import HEAD_SIZES, own_decode, refuse_with_codes
from pymllm_attention_flashinfer.select import KINDS
from pymllm_attention_flashinfer.steps import Planner, Step
from pymllm_attention_triton.backend import TritonAttention


class FlashInferAttention(TritonAttention):
    """Paged attention through FlashInfer, on NVIDIA GPUs. Layout of the cache, writing and, unless an option says
    otherwise, decodes are those of :class:`TritonAttention`; of a cache of codes (int8, int4), prefill as well."""

    capabilities = replace(
        TritonAttention.capabilities,
        dtypes=frozenset({torch.bfloat16, torch.float16}),
        head_dims=frozenset(HEAD_SIZES),
    )

    def __init__(self, options: FlashInferOptions, context: AttentionContext) -> None:
        """Raises PluginError if FlashInfer is not installed or the device is not a GPU, and ConfigError for an
        option that the device or the cache's dtype does not allow."""
        require()
        if context.device.type != "cuda":
            raise PluginError("attention plugin 'flashinfer' runs on CUDA devices; set attention.plugin to another")
        if context.kv_bits is not None:
            refuse_with_codes(options, context.kv_dtype)
        super().__init__(options, context)
        self.own_prefill = context.kv_bits is not None
        self._options = options
        self._planner = Planner(options, context)
        self._packed = PackedAttention(self._planner)
        self._layers: dict[str, list[tuple[Tensor, Tensor]]] = {}
        self._parts: Step | None = None

    def allocate(self, group: KVGroup, pages: int) -> None:
        """Allocate a group's cache. Raises torch.OutOfMemoryError."""
        self._layers.pop(group.name, None)
        super().allocate(group, pages)
        if self.own_prefill:
            return
        # As the library takes them: [pages, S, K, D], with strides.
        self._layers[group.name] = [
            (layer[:, :, 0].transpose(1, 2), layer[:, :, 1].transpose(1, 2)) for layer in self._caches[group.name].data
        ]

    def plan(self, batch: AttentionBatch) -> None:
        """Divide the work of a step; see ``AttentionBatch.graph_key`` for steps in CUDA graphs."""
        super().plan(batch)
        planned = self._planned.prompts or self._planner.kernels.decodes
        self._parts = self._planner.step(batch) if planned and not self.own_prefill else None

    def decode(self, layer: AttentionLayer, q: Tensor, out: Tensor) -> None:
        """Of the library where an option says so. Raises RuntimeError if that is captured in a CUDA graph before a
        layer of this shape ever ran, and ConfigError for heads that it does not cover."""
        heads = _heads(layer)
        if own_decode(self._options.decode, heads) is None:
            super().decode(layer, q, out)
        else:
            self._run(layer, heads, q, out, decodes=True)

    def prefill(self, layer: AttentionLayer, q: Tensor, out: Tensor) -> None:
        """Raises RuntimeError if it is captured in a CUDA graph before a layer of this shape ever ran."""
        if self.own_prefill:
            super().prefill(layer, q, out)
        else:
            self._run(layer, _heads(layer), q, out, decodes=False)

    def varlen(self, q: Tensor, k: Tensor, v: Tensor, out: Tensor, starts: Sequence[int], scale: float) -> None:
        """Non-causal attention inside each sequence. Raises ValueError for a head size above 256."""
        self._packed(q, k, v, out, starts, scale)

    def warmup(self) -> Iterator[str]:
        """Load, or build, every kernel that the layers which ran so far may need, whatever the step."""
        yield from super().warmup()
        if self.own_prefill:
            return
        for heads in dict.fromkeys(Heads(heads, kv, size) for (_, heads), (size, kv) in self._seen.items()):
            for kind in self._planner.kernels.kinds(heads):
                self._planner.kernels.kernel(heads.size, kind)
                yield f"FlashInfer kernel loaded: {KINDS[kind]}, head size {heads.size}"

    def _run(self, layer: AttentionLayer, heads: Heads, q: Tensor, out: Tensor, *, decodes: bool) -> None:
        assert self._parts is not None, "plan() saw such requests"
        k, v = self._layers[layer.group][layer.index]
        for run, of_decodes, rows in self._planner.parts(self._parts, heads):
            if of_decodes is decodes:
                if rows is None:
                    run(q, k, v, out, layer.scale)
                else:
                    run(q[rows], k, v, out[rows], layer.scale)


def _heads(layer: AttentionLayer) -> Heads:
    return Heads(layer.heads, layer.kv_heads, layer.head_dim)
