"""The Triton kernels where there is no GPU: run by Triton's interpreter, or compiled ahead of time."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from types import ModuleType

import pytest

PACKAGE = "pymllm.layers.kernels."


@pytest.fixture
def interpreted(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], ModuleType]]:
    """Imports a module of the package so that its kernels run on CPU tensors. Triton decides when a kernel is
    defined, so the modules are imported afresh, and those that were there before come back afterwards."""
    pytest.importorskip("triton")
    kept = {name: module for name, module in sys.modules.items() if _defines_kernels(name)}
    for name in kept:
        del sys.modules[name]
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    yield lambda name: importlib.import_module(PACKAGE + name)
    for name in [name for name in sys.modules if _defines_kernels(name)]:
        del sys.modules[name]
    sys.modules.update(kept)


def _defines_kernels(name: str) -> bool:
    return name.startswith(PACKAGE) and (name.endswith("_triton") or name == PACKAGE + "dependent")
