"""Attention without a KV cache: each token of a sequence sees all of it (vision towers)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from pymllm.interfaces.attention import AttentionBackend
from pymllm.layers.kernels import write_qkv


class VarlenAttention(nn.Module):
    """Everything between the qkv projection and the output projection, for sequences packed one after another. Made by
    :meth:`BuildContext.varlen_attention`."""

    def __init__(self, backend: AttentionBackend, *, heads: int, head_dim: int) -> None:
        super().__init__()
        self.backend = backend
        self.heads = heads
        self.head_dim = head_dim
        self.scale: float = head_dim**-0.5

    def forward(self, qkv: Tensor, rows: Tensor, cos_sin: Tensor, starts: Sequence[int]) -> Tensor:
        """qkv: [T, 3 H D], q then k then v; rows: [T], 0 to T - 1; cos_sin: [T, D] float32, the rotation of each token,
        cosines then sines; starts: [N + 1] host, row bounds of the N sequences -> [T, H D]."""
        count = len(qkv)
        q, k, v = torch.empty(3, count, self.heads, self.head_dim, dtype=qkv.dtype, device=qkv.device)
        # To the kernel that writes a cache, k and v are caches with pages of one token.
        write_qkv(qkv.contiguous(), q, k.unsqueeze(1), v.unsqueeze(1), rows, rows, cos_sin)
        return self.backend.varlen(q, k, v, starts, self.scale).reshape(count, -1)
