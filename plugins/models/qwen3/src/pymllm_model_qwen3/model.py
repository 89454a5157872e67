"""Qwen3, dense: q and k are normed per head before they are rotated."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from torch import Tensor, nn

from pymllm.layers import BuildContext, DecoderConfig, DenseModel, RMSNorm, Rope, optional


class Qwen3Attention(nn.Module):
    """Grouped-query attention with q and k norms and rotary positions, on the residual stream:
    h [T, C] -> h + attention(norm(h))."""

    def __init__(self, context: BuildContext, rope: Rope, *, sizes: DecoderConfig, bias: bool) -> None:
        super().__init__()
        q_width, kv_width = sizes.heads * sizes.head_dim, sizes.kv_heads * sizes.head_dim
        self.qkv = context.linear(
            ("q_proj", "k_proj", "v_proj"), sizes.hidden, (q_width, kv_width, kv_width), bias=bias, parallel="column"
        )
        self.attention = context.attention(
            heads=sizes.heads,
            kv_heads=sizes.kv_heads,
            head_dim=sizes.head_dim,
            rope=rope,
            q_norm=context.norm("q_norm", sizes.head_dim, sizes.eps),
            k_norm=context.norm("k_norm", sizes.head_dim, sizes.eps),
        )
        self.output = context.linear("o_proj", q_width, sizes.hidden, bias=bias, parallel="row")

    def forward(self, h: Tensor, norm: RMSNorm, positions: Tensor) -> Tensor:
        return self.output.onto(self.attention(self.qkv.after_norm(h, norm), positions), h)


class Qwen3Model(DenseModel):
    """``Qwen3ForCausalLM``."""

    def __init__(self, config: Mapping[str, Any], context: BuildContext) -> None:
        sizes = self.sizes(config)
        bias = optional(config, "attention_bias", False)
        super().__init__(sizes, config, context, partial(Qwen3Attention, sizes=sizes, bias=bias))

    @classmethod
    def sizes(cls, config: Mapping[str, Any]) -> DecoderConfig:
        # transformers' Qwen3Config has 128 where a config does not say.
        return DecoderConfig.read(config, head_dim=128)
