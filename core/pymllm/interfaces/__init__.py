"""The contracts, and the words of the configuration that they use.

Each is imported on first use, so that what needs no torch (a cache policy, a media processor) imports none.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pymllm.config import KVDtype
    from pymllm.interfaces.attention import (
        AttentionBackend,
        AttentionBatch,
        AttentionCapabilities,
        AttentionContext,
        AttentionLayer,
        GraphKey,
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
    from pymllm.interfaces.evaluation import Evaluation, Question
    from pymllm.interfaces.media import (
        MediaItem,
        MediaProcessor,
        MediaRows,
        MediaRun,
        Placed,
        ProcessedMedia,
        ProcessorContext,
    )
    from pymllm.interfaces.model import ForwardBatch, Model
    from pymllm.interfaces.quant import Linear, LinearSpec, QuantContext, QuantMethod, Unsupported
    from pymllm.interfaces.weights import Binding, Draw, WeightMap, always, any_integers

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
    "Draw",
    "Evaluation",
    "ForwardBatch",
    "GraphKey",
    "Hit",
    "InsertInfo",
    "KVDtype",
    "KVGroup",
    "Linear",
    "LinearSpec",
    "MediaItem",
    "MediaProcessor",
    "MediaRows",
    "MediaRun",
    "MediaSpan",
    "Model",
    "Placed",
    "ProcessedMedia",
    "ProcessorContext",
    "QuantContext",
    "QuantMethod",
    "Question",
    "Unsupported",
    "WeightMap",
    "always",
    "any_integers",
]

_MODULES = ("cache", "media", "evaluation", "weights", "attention", "quant", "model")
"""Where the names are looked for; first what needs no torch."""

if not TYPE_CHECKING:  # a type checker knows the names from above, and should miss others

    def __getattr__(name: str) -> Any:
        if name in __all__:
            for module in ("pymllm.config", *(f"{__name__}.{module}" for module in _MODULES)):
                found = getattr(import_module(module), name, None)
                if found is not None:
                    globals()[name] = found
                    return found
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
