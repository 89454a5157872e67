"""Every kernel compiles for Orin (sm_87) and Hopper (sm_90), on a machine without either."""

from __future__ import annotations

from typing import Any

import pytest

triton = pytest.importorskip("triton")

from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402

BF16, F32, I32, I64 = "*bf16", "*fp32", "*i32", "*i64"
PRODUCT: dict[str, Any] = {**dict.fromkeys(("x", "weight", "out"), BF16), "N": "i32"}
GEMV = {**PRODUCT, "eps": "fp32"}
DOT = {**PRODUCT, "rows": "i32"}
TILE = {"M": 16, "BLOCK_N": 64, "BLOCK_K": 128, "SPLIT": 1, "STAGES": 3, "GATED": False}
STRIDES = {f"{cache}_{axis}": "i32" for cache in "kv" for axis in ("page", "token", "head")}
QKV: dict[str, Any] = {
    **dict.fromkeys(("qkv", "q_out", "k_cache", "v_cache"), BF16),
    **dict.fromkeys(("slots", "positions"), I64),
    **dict.fromkeys(("tokens", "page_size"), "i32"),
    **STRIDES,
    "q_eps": "fp32",
    "k_eps": "fp32",
}
CODES: dict[str, Any] = dict.fromkeys(("k_scales", "v_scales"), I32)
PLACES = {"SCALE_PAGE": 8448, "SCALE_TOKEN": 1, "SCALE_HEAD": 1056}

CASES = {
    "gemv": ("gemv_triton", "gemv_kernel", {**GEMV, "residual": BF16}, {"K": 3072, "GATED": False}),
    "gemv, norm and gate": (
        "gemv_triton",
        "gemv_kernel",
        {**GEMV, "norm_weight": BF16, "bias": BF16},
        {"K": 2560, "GATED": True},
    ),
    "gemv, resident": (
        "gemv_triton",
        "resident_kernel",
        {**GEMV, "norm_weight": BF16},
        {"K": 2560, "GATED": True, "BLOCK_K": 4096},
    ),
    "dot": ("dot_triton", "dot_kernel", {**DOT, "residual": BF16}, {**TILE, "K": 3072}),
    "dot, gate, split": (
        "dot_triton",
        "dot_kernel",
        {**DOT, "bias": BF16, "parts": F32, "counters": I32},
        {**TILE, "K": 2560, "M": 32, "GATED": True, "SPLIT": 2},
    ),
    "norm": (
        "rows_triton",
        "rms_norm_kernel",
        {"x": BF16, "weight": BF16, "out": BF16, "rows": "i32", "eps": "fp32"},
        {"SIZE": 2560, "BLOCK": 4096, "ROWS": 1},
    ),
    "layer norm": (
        "rows_triton",
        "layer_norm_kernel",
        {"x": BF16, "weight": BF16, "bias": BF16, "offset": F32, "out": BF16, "rows": "i32", "eps": "fp32"},
        {"SIZE": 1152, "BLOCK": 2048, "ROWS": 1},
    ),
    "activation": (
        "rows_triton",
        "silu_and_mul_kernel",
        {"gate_up": BF16, "out": BF16, "width": "i32"},
        {"BLOCK": 1024},
    ),
    "write_qkv": (
        "qkv_triton",
        "write_qkv_kernel",
        {**QKV, "cos_sin": F32, "q_weight": BF16, "k_weight": BF16},
        {"H": 16, "K": 8, "D": 128, "HALF": 64, "BLOCK_HALF": 64, "BLOCK_REST": 1, "TOKENS": 16},
    ),
    "write_qkv, codes of 8 bits": (
        "qkv_triton",
        "write_qkv_kernel",
        {**QKV, **CODES, **dict.fromkeys(("k_cache", "v_cache"), "*i8"), "cos_sin": F32, "k_weight": BF16},
        {"H": 4, "K": 2, "D": 80, "HALF": 20, "BLOCK_HALF": 32, "BLOCK_REST": 64, "TOKENS": 4, "BITS": 8, **PLACES},
    ),
    "write_qkv, codes of 4 bits": (
        "qkv_triton",
        "write_qkv_kernel",
        {**QKV, **CODES, **dict.fromkeys(("k_cache", "v_cache"), "*u8"), "cos_sin": F32, "k_weight": BF16},
        {"H": 16, "K": 8, "D": 128, "HALF": 64, "BLOCK_HALF": 64, "BLOCK_REST": 1, "TOKENS": 16, "BITS": 4, **PLACES},
    ),
    "write_qkv, half rotated": (
        "qkv_triton",
        "write_qkv_kernel",
        {**QKV, "cos_sin": F32},
        {"H": 4, "K": 2, "D": 80, "HALF": 20, "BLOCK_HALF": 32, "BLOCK_REST": 64, "TOKENS": 1},
    ),
}


@pytest.mark.parametrize("capability", [87, 90])
@pytest.mark.parametrize("name", CASES)
def test_compiles(name: str, capability: int) -> None:
    module, kernel, arguments, constants = CASES[name]
    function = getattr(__import__(f"pymllm.layers.kernels.{module}", fromlist=[kernel]), kernel)
    constants = {"BLOCK_N": 4, "BLOCK_K": 512, "BITS": 0, **constants, "PDL": capability >= 90}
    source = ASTSource(
        function,
        {key: arguments.get(key, "constexpr") for key in function.arg_names},
        {(index,): constants.get(key) for index, key in enumerate(function.arg_names) if key not in arguments},
    )
    compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32), options={"num_warps": 4})
    assert f".target sm_{capability}" in compiled.asm["ptx"]
    assert ("griddepcontrol.wait" in compiled.asm["ptx"]) == (capability >= 90)
    assert compiled.asm["cubin"]


@pytest.mark.parametrize(("capability", "element"), [(87, "*u8"), (90, "*fp8e4nv")])
def test_the_cache_may_be_float8(capability: int, element: str) -> None:
    arguments = {**QKV, "k_cache": element, "v_cache": element, "cos_sin": F32, "k_weight": BF16}
    constants = {"H": 4, "K": 2, "D": 128, "HALF": 64, "BLOCK_HALF": 64, "BLOCK_REST": 1, "TOKENS": 1}
    constants |= {"PDL": capability >= 90, "BITS": 0}
    from pymllm.layers.kernels.qkv_triton import write_qkv_kernel as function

    source = ASTSource(
        function,
        {key: arguments.get(key, "constexpr") for key in function.arg_names},
        {(index,): constants.get(key) for index, key in enumerate(function.arg_names) if key not in arguments},
    )
    compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32), options={"num_warps": 1})
    # Bytes are made by integer arithmetic; the instruction turns what is too large into the largest number.
    assert ("satfinite.e4m3x2.f32" in compiled.asm["ptx"]) == (capability >= 90)
    assert compiled.asm["cubin"]
