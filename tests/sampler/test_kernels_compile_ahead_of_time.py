"""The sampler's kernels compile for Jetson Orin and Hopper, without a GPU."""

from __future__ import annotations

import os

import pytest

triton = pytest.importorskip("triton")
pytestmark = pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="the interpreter compiles nothing")

ROW = {"V": "i32", "NB": "i32"}
LOGITS = {"logits": "*bf16", "stride": "i32", "peaks": "*fp32"}
DRAW = {"slopes": "*fp32", "least": "*i64", "limits": "*i32", "masses": "*i64", "equals": "*i32"}
SEARCH = {"slopes": "*fp32", "limits": "*i32", "ties": "*i64", "kept": "*i64", "CH": "i32"}


def _cases():
    from pymllm.engine.kernels import passes, search

    select = {"SELECT": True, "MIN_P": True, "BLOCK": 1024, "NBP": 256}
    yield passes.block_peaks, {**LOGITS, **ROW}, {"PER": 4, "BLOCK": 1024}
    yield passes.block_masses, {**LOGITS, **DRAW, **ROW}, {**select, "PER": 4}
    types = {
        **LOGITS,
        **DRAW,
        **ROW,
        "numbers": "*i64",
        "positions": "*i64",
        "ties": "*i64",
        "tokens": "*i64",
        "valid": "*i64",
    }
    yield passes.pick, types, {**select, "SEEDED": True}
    tables = {"lows_in": "*i32", "lows_out": "*i32", "partials_in": "*i64", "partials_out": "*i64"}
    sizes = {"shift": "i32", "last_shift": "i32"}
    shape = {"CHP": 32, "NBP": 256}
    for mass, wanted in ((False, "*i64"), (True, "*fp64")):
        for first in (False, True):
            types = {**LOGITS, **SEARCH, **ROW, **tables, **sizes, "wanted": wanted}
            flags = {"MASS": mass, "HAS_K": mass, "FIRST": first, "TILES": 8, "GROUPS": 128, **shape}
            yield search.search, types, flags
    out = {"lows": "*i32", "partials": "*i64", "limits_out": "*i32", "ties_out": "*i64"}
    types = {"peaks": "*fp32", **SEARCH, **ROW, **out, "wanted": "*fp64"}
    yield search.resolve, types, {"MASS": True, "HAS_K": True, **shape}


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
