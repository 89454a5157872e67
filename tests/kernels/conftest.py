"""The Triton kernels where there is no GPU: run by Triton's interpreter, or compiled ahead of time."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from types import ModuleType

import pytest

PACKAGE = "pymllm.layers.kernels."


@pytest.fixture(scope="session")
def interpreted() -> Callable[[str], ModuleType]:
    """A module of the package whose kernels run on CPU tensors. Triton decides that where a kernel, its own library's
    too, is defined: so both are imported a second time, apart from the copies that compile."""
    pytest.importorskip("triton")
    ours = {name: module for name, module in sys.modules.items() if _defines_kernels(name)}
    for name in ours:
        del sys.modules[name]
    before = os.environ.get("TRITON_INTERPRET")
    os.environ["TRITON_INTERPRET"] = "1"
    modules = {
        name: importlib.import_module(PACKAGE + name)
        for name in ("gemv_triton", "dot_triton", "rows_triton", "qkv_triton")
    }
    if before is None:
        del os.environ["TRITON_INTERPRET"]
    for name in [name for name in sys.modules if _defines_kernels(name)]:
        del sys.modules[name]
    sys.modules.update(ours)
    return modules.__getitem__


def _defines_kernels(name: str) -> bool:
    """Whether a module is one of ours with kernels, or of Triton's (but for its compiled part, which is one)."""
    if name.startswith(PACKAGE):
        return name.endswith("_triton") or name == PACKAGE + "dependent"
    return name.split(".")[0] == "triton" and not name.startswith("triton._C")
