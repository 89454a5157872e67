"""What model and quantization plugins are built of."""

from pymllm.layers.attention import Attention
from pymllm.layers.config import optional, required
from pymllm.layers.context import BuildContext
from pymllm.layers.decoder import Decoder, DecoderConfig, DenseModel
from pymllm.layers.embedding import Embedding, TiedHead
from pymllm.layers.kernels import silu_and_mul
from pymllm.layers.linear import FullPrecision, FullPrecisionLinear
from pymllm.layers.media import MediaPoint
from pymllm.layers.mlp import MLP, GatedMLP
from pymllm.layers.multi_rope import MultiRope
from pymllm.layers.norm import LayerNorm, RMSNorm
from pymllm.layers.rope import Rope, rope_from_config
from pymllm.layers.varlen import VarlenAttention, VarlenStack

__all__ = [
    "MLP",
    "Attention",
    "BuildContext",
    "Decoder",
    "DecoderConfig",
    "DenseModel",
    "Embedding",
    "FullPrecision",
    "FullPrecisionLinear",
    "GatedMLP",
    "LayerNorm",
    "MediaPoint",
    "MultiRope",
    "RMSNorm",
    "Rope",
    "TiedHead",
    "VarlenAttention",
    "VarlenStack",
    "optional",
    "required",
    "rope_from_config",
    "silu_and_mul",
]
