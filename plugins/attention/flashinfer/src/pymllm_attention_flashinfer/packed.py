"""Attention without pages: non-causal, inside each sequence of a packed batch (vision towers)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from pymllm_attention_flashinfer.kernels import Heads, Prefill, RunCall, Types, host
from pymllm_attention_flashinfer.policy import HEAD_SIZES, prefill_generation
from pymllm_attention_flashinfer.steps import Planner


class PackedAttention:
    """Plans once for all layers that have the same sequences and heads; head sizes between those that the
    kernels are made for are padded with zeros, which changes nothing."""

    def __init__(self, planner: Planner) -> None:
        self._planner = planner
        self._kernels: dict[int, Prefill] = {}
        self._planned: tuple[object, RunCall] | None = None

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, out: Tensor, starts: Sequence[int], scale: float) -> None:
        """See ``AttentionBackend.varlen``. Raises ValueError for heads that are too large."""
        size = q.shape[-1]
        padded = next((known for known in HEAD_SIZES if known >= size), None)
        if padded is None:
            raise ValueError(f"flashinfer serves head sizes up to {HEAD_SIZES[-1]}, not {size}; use another backend")
        run = self._plan(self._kernel(padded, q), Heads(q.shape[1], k.shape[1], padded), starts, q.device)
        if padded == size:
            run(q, k, v, out, scale)
            return
        q, k, v = (F.pad(x, (0, padded - size)) for x in (q, k, v))
        wide = torch.empty_like(q)
        run(q, k, v, wide, scale)
        out.copy_(wide[..., :size])

    def _kernel(self, size: int, like: Tensor) -> Prefill:
        kernel = self._kernels.get(size)
        if kernel is None:
            generation = prefill_generation(self._planner.kernels.options.prefill, like.device, like.dtype)
            types = Types(like.dtype, like.dtype)
            kernel = self._kernels[size] = Prefill(generation, types, size, like.device, causal=False)
        return kernel

    def _plan(self, kernel: Prefill, heads: Heads, starts: Sequence[int], device: torch.device) -> RunCall:
        key = (heads, tuple(starts))
        if self._planned is None or self._planned[0] != key:
            bounds = np.array(starts, dtype=np.int32)
            with self._planner.packed_memory(heads) as (memory, pinned):
                plan = kernel.packed_planner(memory, bounds, heads)(pinned)
            # The copy out of pageable memory is over when this returns: it happens once for all layers.
            self._planned = (key, kernel.packed_runner(memory, plan, host(bounds).to(device)))
        return self._planned[1]
