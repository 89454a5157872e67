"""The Triton kernels where there is no GPU: run by Triton's interpreter."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from types import ModuleType

import pytest

OURS = "pymllm_quant_w4a16.kernels."
SHARED = "pymllm.layers.kernels.dependent"


@pytest.fixture(scope="session")
def interpreted() -> Callable[[str], ModuleType]:
    """A module of kernels that run on CPU tensors. Triton decides that where a kernel, its own library's too, is
    defined: so they are imported a second time, apart from the copies that compile."""
    pytest.importorskip("triton")
    compiled = {name: module for name, module in sys.modules.items() if _defines_kernels(name)}
    for name in compiled:
        del sys.modules[name]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_INTERPRET", "1")
        names = ("dot_triton", "gemv_triton", "dequantize_triton")
        modules = {name: importlib.import_module(OURS + name) for name in names}
    for name in [name for name in sys.modules if _defines_kernels(name)]:
        del sys.modules[name]
    sys.modules.update(compiled)
    assert "TRITON_INTERPRET" not in os.environ, "the other tests compile"
    return modules.__getitem__


def _defines_kernels(name: str) -> bool:
    """Whether a module is one of ours with kernels, or of Triton's (but for its compiled part, which is one)."""
    if name == SHARED or name.startswith(OURS):
        return True
    return name.split(".")[0] == "triton" and not name.startswith("triton._C")
