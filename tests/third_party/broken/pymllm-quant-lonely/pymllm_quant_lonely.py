"""Needs a package that is not installed."""

from __future__ import annotations

import pymllm_lonely_kernels  # type: ignore[import-not-found]

from pymllm.plugin import QuantSpec, hookimpl


@hookimpl
def pymllm_quant() -> QuantSpec:
    return QuantSpec(factory=f"{pymllm_lonely_kernels.__name__}:Method")
