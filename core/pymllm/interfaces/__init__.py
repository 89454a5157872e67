"""The four contracts, and nothing else."""

from pymllm.interfaces.attention import (
    AttentionBackend,
    AttentionBatch,
    AttentionCapabilities,
    AttentionContext,
    AttentionLayer,
    KVGroup,
)
from pymllm.interfaces.cache import (
    CacheContext,
    CacheKey,
    CachePolicy,
    CacheStats,
    Hit,
    InsertInfo,
    MediaSpan,
)
from pymllm.interfaces.model import ForwardBatch, Model
from pymllm.interfaces.quant import Linear, LinearSpec, QuantContext, QuantMethod, Unsupported
from pymllm.interfaces.weights import Binding, WeightMap

__all__ = [
    "AttentionBackend",
    "AttentionBatch",
    "AttentionCapabilities",
    "AttentionContext",
    "AttentionLayer",
    "Binding",
    "CacheContext",
    "CacheKey",
    "CachePolicy",
    "CacheStats",
    "ForwardBatch",
    "Hit",
    "InsertInfo",
    "KVGroup",
    "Linear",
    "LinearSpec",
    "MediaSpan",
    "Model",
    "QuantContext",
    "QuantMethod",
    "Unsupported",
    "WeightMap",
]
