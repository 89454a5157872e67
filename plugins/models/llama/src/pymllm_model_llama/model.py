"""Llama, SmolLM2 (the same architecture) and Qwen2 (biases on q, k and v)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from torch import Tensor, nn

from pymllm.layers import BuildContext, DecoderConfig, DenseModel, RMSNorm, Rope, optional


class LlamaAttention(nn.Module):
    """Grouped-query attention with rotary positions, on the residual stream: h [T, C] -> h + attention(norm(h))."""

    def __init__(
        self, context: BuildContext, rope: Rope, *, sizes: DecoderConfig, qkv_bias: bool, output_bias: bool
    ) -> None:
        super().__init__()
        q_width, kv_width = sizes.heads * sizes.head_dim, sizes.kv_heads * sizes.head_dim
        self.qkv = context.linear(
            ("q_proj", "k_proj", "v_proj"),
            sizes.hidden,
            (q_width, kv_width, kv_width),
            bias=qkv_bias,
            parallel="column",
        )
        self.attention = context.attention(
            heads=sizes.heads, kv_heads=sizes.kv_heads, head_dim=sizes.head_dim, rope=rope
        )
        self.output = context.linear("o_proj", q_width, sizes.hidden, bias=output_bias, parallel="row")

    def forward(self, h: Tensor, norm: RMSNorm, positions: Tensor) -> Tensor:
        return self.output.onto(self.attention(self.qkv.after_norm(h, norm), positions), h)


class LlamaModel(DenseModel):
    """``LlamaForCausalLM`` and ``Qwen2ForCausalLM``."""

    def __init__(self, config: Mapping[str, Any], context: BuildContext) -> None:
        biased = optional(config, "attention_bias", False)
        qwen2 = _is_qwen2(config)
        sizes = self.sizes(config)
        attention = partial(LlamaAttention, sizes=sizes, qkv_bias=qwen2 or biased, output_bias=biased and not qwen2)
        super().__init__(sizes, config, context, attention)

    @classmethod
    def sizes(cls, config: Mapping[str, Any]) -> DecoderConfig:
        mlp_bias = optional(config, "mlp_bias", False) and not _is_qwen2(config)
        return DecoderConfig.read(config, mlp_bias=mlp_bias)


def _is_qwen2(config: Mapping[str, Any]) -> bool:
    return "Qwen2ForCausalLM" in (config.get("architectures") or ()) or config.get("model_type") == "qwen2"
