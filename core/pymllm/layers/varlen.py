"""Attention without a KV cache: each token of a sequence sees all of it (vision towers).

Shape letters: T rows of all sequences, C components, H heads of D components, N sequences.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

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
        q, k, v, out = torch.empty(4, count, self.heads, self.head_dim, dtype=qkv.dtype, device=qkv.device)
        # To the kernel that writes a cache, k and v are caches with pages of one token.
        write_qkv(qkv.contiguous(), q, k.unsqueeze(1), v.unsqueeze(1), rows, rows, cos_sin)
        self.backend.varlen(q, k, v, out, starts, self.scale)
        return out.view(count, -1)


Stack = Callable[[Tensor, Tensor, Sequence[int]], Tensor]
"""What a :class:`VarlenStack` computes, with its arguments."""


class VarlenStack(nn.Module, ABC):
    """The blocks of a tower, from the embeddings of its rows to its features: between its attentions it works row by
    row (or on ``merged`` neighbouring rows), so an engine can replay it as CUDA graphs, padded.

    width: C. angles: components of ``cos_sin``. merged: rows that become one row of the result; every sequence is a
    multiple of it. replay: an engine's, used where it is set.
    """

    def __init__(self, *, width: int, angles: int, merged: int) -> None:
        super().__init__()
        self.width = width
        self.angles = angles
        self.merged = merged
        self.replay: Stack | None = None

    def forward(self, h: Tensor, cos_sin: Tensor, starts: Sequence[int]) -> Tensor:
        """h: [T, C], may be overwritten; cos_sin: [T, angles] float32; starts: [N + 1] host, row bounds of the
        sequences -> [T / merged, F]."""
        return self.compute(h, cos_sin, starts) if self.replay is None else self.replay(h, cos_sin, starts)

    @abstractmethod
    def compute(self, h: Tensor, cos_sin: Tensor, starts: Sequence[int]) -> Tensor:
        """``forward``, launched kernel by kernel."""
