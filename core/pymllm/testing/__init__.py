"""The contracts' other half: a plugin whose tests subclass its kind's conformance kit, and pass, works.

Each kit is imported on first use, so that a cache policy's tests need no torch.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

_KITS = {
    "AttentionBackendConformance": "attention",
    "CachePolicyConformance": "cache",
    "MediaModelConformance": "media",
    "ModelConformance": "model",
    "QuantMethodConformance": "quant",
    "make_tiny_checkpoint": "tiny",
    "make_tiny_vision_checkpoint": "tiny_vision",
}

__all__ = [
    "AttentionBackendConformance",
    "CachePolicyConformance",
    "MediaModelConformance",
    "ModelConformance",
    "QuantMethodConformance",
    "make_tiny_checkpoint",
    "make_tiny_vision_checkpoint",
]


def _rewrite_asserts() -> None:
    """Let pytest explain the kits' failed asserts as it does those of test files."""
    if "pytest" in sys.modules:
        import pytest

        modules = {f"{__name__}.{module}" for module in _KITS.values()}
        pytest.register_assert_rewrite(*sorted(modules - set(sys.modules)))


def __getattr__(name: str) -> Any:
    if name not in _KITS:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    return getattr(importlib.import_module(f"{__name__}.{_KITS[name]}"), name)


_rewrite_asserts()
