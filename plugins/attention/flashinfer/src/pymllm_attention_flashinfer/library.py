"""Finds FlashInfer and loads its compiled kernels. FlashInfer is imported when a kernel is first asked for."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch

from pymllm.errors import PluginError

log = logging.getLogger(__name__)


def missing() -> str | None:
    """One line that says what is not installed, or None."""
    if find_spec("flashinfer") is None:
        return "FlashInfer is not installed; run: pip install 'flashinfer-python>=0.6.13'"
    return None


def require() -> None:
    """Raise PluginError if FlashInfer is not installed."""
    reason = missing()
    if reason is not None:
        raise PluginError(f"attention plugin 'flashinfer' cannot run: {reason}")


@cache
def decode_module(dtype: torch.dtype, cache: torch.dtype, head_dim: int) -> Any:
    """The compiled decode kernels for CUDA cores, with functions ``plan`` and ``run``; built when first needed.

    dtype: of queries and results; cache: of keys and values. Raises PluginError if FlashInfer is missing or cannot
    build them.
    """

    def build() -> Any:
        from flashinfer.jit.attention import gen_batch_decode_module

        # Types of q, cache, output and indices; head sizes; no position encoding, window or soft cap.
        return gen_batch_decode_module(dtype, cache, dtype, torch.int32, head_dim, head_dim, 0, False, False)

    return _load(f"decode kernel for {dtype}, a cache of {cache} and head size {head_dim}", build)


@cache
def prefill_module(generation: str, dtype: torch.dtype, cache: torch.dtype, head_dim: int) -> Any:
    """The compiled prefill kernels of a generation, "fa2" or "fa3": ``plan``, ``paged_run``, ``ragged_run``.

    Raises PluginError as :func:`decode_module` does.
    """

    def build() -> Any:
        from flashinfer.jit.attention import gen_batch_prefill_module

        types = (dtype, cache, dtype, torch.int32)
        return gen_batch_prefill_module(generation, *types, head_dim, head_dim, 0, False, False, False)

    return _load(f"{generation} prefill kernel for {dtype}, a cache of {cache} and head size {head_dim}", build)


def _load(what: str, build: Callable[[], Any]) -> Any:
    require()
    try:
        spec = build()
        if not spec.is_aot and not spec.jit_library_path.exists():
            log.info("building FlashInfer's %s, once for this GPU and version; it takes minutes", what)
        return spec.build_and_load()
    except Exception as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[-1]
        raise PluginError(
            f"FlashInfer cannot build its {what}: {reason}; it needs nvcc and ninja, or its wheel of prebuilt "
            "kernels (flashinfer-jit-cache); or set attention.plugin to another"
        ) from error
