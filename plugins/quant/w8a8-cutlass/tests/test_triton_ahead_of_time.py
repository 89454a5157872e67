"""Every Triton kernel compiles for Orin (sm_87) and Hopper (sm_90), on a machine without either."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

triton = pytest.importorskip("triton")

from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402

BF16, F16, F32, I32, I8 = "*bf16", "*fp16", "*fp32", "*i32", "*i8"
ROWS: dict[str, Any] = {"x": BF16, "out": I8, "scales": F32, "rows": "i32", "eps": "fp32"}
GEMV: dict[str, Any] = {"x": BF16, "weight": I32, "weight_scale": F32, "out": BF16, "eps": "fp32", "N": "i32"}
DOT: dict[str, Any] = {
    "x": I8, "x_scale": F32, "weight": I8, "weight_scale": F32, "out": BF16, "rows": "i32", "N": "i32",
}  # fmt: skip
TILE = {"M": 16, "BLOCK_N": 64, "BLOCK_K": 128, "SPLIT": 1, "STAGES": 3, "GATED": False, "GROUP": 8}

CASES = {
    "rows": ("rows_triton", "quantize_kernel", ROWS, {"SIZE": 4096, "BLOCK": 4096, "ROWS": 1, "GATED": False}),
    "rows, norm": (
        "rows_triton",
        "quantize_kernel",
        {**ROWS, "norm_weight": BF16},
        {"SIZE": 576, "BLOCK": 1024, "ROWS": 1, "GATED": False},
    ),
    "rows, gate": ("rows_triton", "quantize_kernel", ROWS, {"SIZE": 9728, "BLOCK": 16384, "ROWS": 1, "GATED": True}),
    "gemv": (
        "gemv_triton",
        "gemv_kernel",
        {**GEMV, "residual": BF16},
        {"K": 9728, "WORDS": 4096, "BLOCK_N": 1, "GATED": False, "NATIVE": True},
    ),
    "gemv, norm and gate": (
        "gemv_triton",
        "gemv_kernel",
        {**GEMV, "norm_weight": BF16, "bias": BF16},
        {"K": 2560, "WORDS": 1024, "BLOCK_N": 2, "GATED": True, "NATIVE": True},
    ),
    "dot": ("dot_triton", "dot_kernel", {**DOT, "residual": BF16}, {**TILE, "K": 3072}),
    "dot, float16, uneven": ("dot_triton", "dot_kernel", {**DOT, "out": F16}, {**TILE, "K": 2576, "M": 64}),
    "dot, gate, split": (
        "dot_triton",
        "dot_kernel",
        {**DOT, "bias": BF16, "parts": I32, "counters": I32},
        {**TILE, "K": 2560, "M": 32, "GATED": True, "SPLIT": 2},
    ),
    "dot, many rows": ("dot_triton", "dot_kernel", DOT, {**TILE, "K": 2560, "M": 128, "BLOCK_N": 128}),
}


@pytest.mark.parametrize("capability", [87, 90])
@pytest.mark.parametrize("name", CASES)
def test_compiles(name: str, capability: int) -> None:
    module, kernel, arguments, constants = CASES[name]
    function = getattr(importlib.import_module(f"pymllm_quant_w8a8_cutlass.kernels.{module}"), kernel)
    constants = {**constants, "PDL": capability >= 90}
    source = ASTSource(
        function,
        {key: arguments.get(key, "constexpr") for key in function.arg_names},
        {(index,): constants.get(key) for index, key in enumerate(function.arg_names) if key not in arguments},
        # Tensors begin at multiples of 16 bytes, as PyTorch allocates them.
        {(index,): [["tt.divisibility", 16]] for index, key in enumerate(function.arg_names) if key in arguments},
    )
    options = {"num_warps": 8 if "many" in name or "rows" in name else 4}
    compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    ptx = compiled.asm["ptx"]
    assert f".target sm_{capability}" in ptx
    assert ("griddepcontrol.wait" in ptx) == (capability >= 90)
    if module == "gemv_triton":
        assert "dp4a.s32.s32" in ptx
        assert "ld.global.L1::evict_first.v4" in ptx or "ld.global.L2::cache_hint.v4" in ptx or "v4.b32" in ptx
    if module == "dot_triton":
        instruction = "wgmma.mma_async.sync.aligned" if capability == 90 else "mma.sync.aligned.m16n8k32.row.col"
        assert f"{instruction}" in ptx
        assert "s32.s8.s8" in ptx
    assert compiled.asm["cubin"]
