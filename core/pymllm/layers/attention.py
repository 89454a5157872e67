"""An attention layer as a model sees it; the backend does the work."""

from __future__ import annotations

from torch import Tensor, nn

from pymllm.interfaces.attention import AttentionBackend
from pymllm.layers.norm import RMSNorm
from pymllm.layers.rope import Rope


class Attention(nn.Module):
    """Everything between the qkv projection and the output projection; an ``AttentionLayer``.

    Made by :meth:`BuildContext.attention`, which gives it its index within its memory group.
    """

    def __init__(
        self,
        backend: AttentionBackend,
        *,
        group: str,
        index: int,
        heads: int,
        kv_heads: int,
        head_dim: int,
        scale: float,
        rope: Rope | None,
        q_norm: RMSNorm | None,
        k_norm: RMSNorm | None,
    ) -> None:
        super().__init__()
        self.backend = backend
        self.group = group
        self.index = index
        self.heads = heads
        self.kv_heads = kv_heads
        self.head_dim = head_dim
        self.scale = scale
        self.rope = rope
        self.q_norm = q_norm
        self.k_norm = k_norm

    def forward(self, qkv: Tensor, positions: Tensor) -> Tensor:
        """qkv: [T, (H + 2 K) D], q then k then v; positions: [T] -> [T, H D]."""
        return self.backend.forward(self, qkv, positions)
