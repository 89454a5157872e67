"""The sampler's kernels compile for Jetson Orin and Hopper, without a GPU."""

from __future__ import annotations

import os

import pytest

triton = pytest.importorskip("triton")
pytestmark = pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="the interpreter compiles nothing")

ROW = {"logits": "*bf16", "stride": "i32", "table": "*i64", "width": "i32", "peaks": "*fp32", "V": "i32", "NB": "i32"}
SELECTION = {"limits": "*i32", "ties": "*i64"}


def _cases():
    from pymllm.engine.kernels import passes, search

    draw = {**ROW, **SELECTION, "masses": "*i64", "equals": "*i32", "tokens": "*i64", "valid": "*i64"}
    for edited in (False, True):
        yield passes.block_peaks, ROW, {"EDITED": edited, "PER": 4, "BLOCK": 1024}
        options = {"EDITED": edited, "SELECT": True, "BLOCK": 1024, "NBP": 256}
        yield passes.block_masses, draw, {**options, "PER": 4}
        yield passes.pick, draw, options
    tables = {"lows_in": "*i32", "lows_out": "*i32", "partials_in": "*i64", "partials_out": "*i64", "kept": "*i64"}
    numbers = dict.fromkeys(("CH", "tiles", "shift", "last_shift"), "i32")
    for mass in (False, True):
        for first in (False, True):
            flags = {"EDITED": first, "MASS": mass, "FIRST": first, "GROUPS": 128, "NBP": 256}
            yield search.search, {**ROW, **SELECTION, **tables, **numbers}, flags
    out = {"kept": "*i64", "lows": "*i32", "partials": "*i64", "limits_out": "*i32", "ties_out": "*i64", "CH": "i32"}
    yield search.resolve, {**ROW, **SELECTION, **out}, {"MASS": True, "NBP": 256}


@pytest.mark.parametrize("capability", [87, 90])
def test_every_kernel_compiles(capability):
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    for kernel, types, constants in _cases():
        signature = {name: types.get(name, "constexpr") for name in kernel.arg_names}
        assert {name for name, kind in signature.items() if kind == "constexpr"} == set(constants)
        source = ASTSource(
            kernel, signature, constexprs={(kernel.arg_names.index(k),): v for k, v in constants.items()}
        )
        compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32), options={"num_warps": 4})
        assert compiled.asm["ptx"]
