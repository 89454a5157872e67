"""Every kernel compiles for Orin (sm_87) and Hopper (sm_90) with the tilings chosen there, and fits, without either."""

from __future__ import annotations

from typing import Any

import pytest

triton = pytest.importorskip("triton")

from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402

from pymllm_quant_w4a16.kernels.dequantize_triton import dequantize_kernel  # noqa: E402
from pymllm_quant_w4a16.kernels.dot_triton import dot_kernel  # noqa: E402
from pymllm_quant_w4a16.tiling import GPU, Product, rule  # noqa: E402

GPUS = {87: GPU("Orin", 16, 163 * 1024), 90: GPU("H200", 132, 227 * 1024)}
"""Shared memory: CUDA programming guide, technical specifications per compute capability."""

COMMON: dict[str, Any] = {"words": "*i32", "scales": "*bf16", "N": "i32"}


def compile_for(
    kernel: Any, capability: int, arguments: dict[str, str], constants: dict[str, Any], **options: Any
) -> Any:
    """Compile as a launch with aligned tensors would."""
    constants = {**constants, "PDL": capability >= 90}
    source = ASTSource(
        kernel,
        {key: arguments.get(key, "constexpr") for key in kernel.arg_names},
        {(index,): constants.get(key) for index, key in enumerate(kernel.arg_names) if key not in arguments},
        {
            (index,): [["tt.divisibility", 16]]
            for index, key in enumerate(kernel.arg_names)
            if arguments.get(key, "").startswith("*")
        },
    )
    return triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)


@pytest.mark.parametrize("capability", GPUS)
@pytest.mark.parametrize(
    "operation, height, terms, rows, group, element",
    [
        ("norm", 6144, 2560, 1, 128, "bf16"),
        ("gated", 19456, 2560, 1, 128, "fp16"),
        ("onto", 2560, 9728, 1, 64, "bf16"),
        ("plain", 2560, 4096, 12, 32, "bf16"),
        ("gated", 19456, 2560, 32, 128, "bf16"),
        ("plain", 6144, 576, 200, 1024, "fp16"),
    ],
)
def test_products_compile(
    capability: int, operation: Any, height: int, terms: int, rows: int, group: int, element: str
) -> None:
    tiling = rule(Product(operation, height, terms), rows, GPUS[capability])
    pointers = ["x", "out"]
    pointers += {"norm": ["norm_weight"], "gated": ["bias"], "onto": ["residual"], "plain": []}[operation]
    if operation == "gated" and rows == 1:
        pointers.append("norm_weight")
    arguments = {**COMMON, **dict.fromkeys(pointers, f"*{element}"), "eps": "fp32", "rows": "i32"}
    if element == "bf16":
        arguments["zeros"] = "*u8"
    if tiling.split > 1:
        arguments |= {"parts": "*fp32", "counters": "*i32"}
    constants = {
        "K": terms,
        "GROUP": group,
        "GROUPS": max(1, terms // group),
        "WIDTH": triton.next_power_of_2(terms),
        "M": tiling.block_m,
        "GATED": operation == "gated",
        "BLOCK_N": tiling.block_n,
        "SPLIT": tiling.split,
        "STAGES": tiling.stages,
        "PTX": True,
    }
    compiled = compile_for(dot_kernel, capability, arguments, constants, num_warps=tiling.warps)
    assert f".target sm_{capability}" in compiled.asm["ptx"]
    assert "prmt.b32 t, " in compiled.asm["ptx"]
    assert ("griddepcontrol.wait" in compiled.asm["ptx"]) == (capability >= 90)
    assert compiled.metadata.shared <= GPUS[capability].shared_memory
    # Words reach the tensor cores' registers without a detour: what is converted is the result.
    assert compiled.asm["ttgir"].count("ttg.convert_layout") <= 4
    assert compiled.asm["cubin"]


@pytest.mark.parametrize("capability", GPUS)
@pytest.mark.parametrize("element", ["bf16", "fp16", "fp32"])
def test_turning_back_compiles(capability: int, element: str) -> None:
    arguments = {**COMMON, "zeros": "*u8", "out": f"*{element}"}
    constants = {"K": 2560, "GROUP": 128, "GROUPS": 20, "BLOCK_N": 16}
    assert compile_for(dequantize_kernel, capability, arguments, constants, num_warps=4).asm["cubin"]
