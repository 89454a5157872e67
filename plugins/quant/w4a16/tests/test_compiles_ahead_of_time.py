"""Every kernel compiles for Orin (sm_87) and Hopper (sm_90) with the tilings chosen there, and fits, without either."""

from __future__ import annotations

from typing import Any

import pytest

triton = pytest.importorskip("triton")

from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402

from pymllm_quant_w4a16.kernels.dequantize_triton import dequantize_kernel  # noqa: E402
from pymllm_quant_w4a16.kernels.dot_triton import dot_kernel  # noqa: E402
from pymllm_quant_w4a16.kernels.gemv_triton import gemv_kernel  # noqa: E402
from pymllm_quant_w4a16.tiling import GPU, Product, rule  # noqa: E402

GPUS = {87: GPU("Orin", 16, 163 * 1024), 90: GPU("H200", 132, 227 * 1024)}
"""Shared memory: CUDA programming guide, technical specifications per compute capability."""

COMMON: dict[str, Any] = {"words": "*i32", "scales": "*i32", "N": "i32"}


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


def neighbours(operation: str, element: str) -> dict[str, str]:
    """Arguments of the product beside those of all."""
    names = {"norm": ["norm_weight"], "gated": ["bias"], "onto": ["residual"], "plain": []}[operation]
    return dict.fromkeys(["x", "out", *names], f"*{element}")


@pytest.mark.parametrize("capability", GPUS)
@pytest.mark.parametrize(
    "operation, height, terms, group, element, inside",
    [
        ("norm", 6144, 2560, 128, "bf16", False),
        ("gated", 19456, 2560, 128, "fp16", True),
        ("onto", 2560, 9728, 64, "bf16", True),
        ("onto", 2560, 4096, 32, "bf16", False),
        ("plain", 576, 1152, 2048, "fp16", True),
    ],
)
def test_products_of_one_row_compile(
    capability: int, operation: Any, height: int, terms: int, group: int, element: str, inside: bool
) -> None:
    tiling = rule(Product(operation, height, terms), 1, GPUS[capability])
    assert tiling.kernel == "gemv"
    arguments = {**COMMON, **neighbours(operation, element), "eps": "fp32"}
    constants = {
        "K": terms,
        "GROUP": group,
        "GROUPS": max(1, terms // group),
        "WIDTH": triton.next_power_of_2(terms),
        "INSIDE": inside,
        "GATED": operation == "gated",
        "BLOCK_N": tiling.block_n,
        "CHUNK": tiling.chunk,
        "STAGES": tiling.stages,
        "KEEP": tiling.programs > 0,
        "PTX": True,
    }
    compiled = compile_for(gemv_kernel, capability, arguments, constants, num_warps=tiling.warps)
    assert ("griddepcontrol.wait" in compiled.asm["ptx"]) == (capability >= 90)
    ahead = tiling.stages * tiling.chunk * 256
    assert ("cp.async.bulk.prefetch" in compiled.asm["ptx"]) == (capability >= 90 and ahead < terms)
    # Nothing moves between threads but sums: a float32 of each warp, for each output or for the norm.
    sums = 2 * tiling.block_n if operation == "gated" else tiling.block_n
    assert compiled.metadata.shared <= 4 * tiling.warps * max(sums, 4)
    assert compiled.asm["cubin"]


@pytest.mark.parametrize("capability", GPUS)
@pytest.mark.parametrize(
    "operation, height, terms, rows, group, element, whole",
    [
        ("norm", 6144, 2560, 2, 128, "bf16", False),
        ("onto", 2560, 9728, 4, 64, "bf16", True),
        ("plain", 2560, 4096, 12, 32, "bf16", False),
        ("gated", 19456, 2560, 32, 128, "bf16", False),
        ("gated", 19456, 2560, 128, 128, "bf16", True),
        ("plain", 6144, 576, 200, 1024, "fp16", True),
    ],
)
def test_products_compile(
    capability: int, operation: Any, height: int, terms: int, rows: int, group: int, element: str, whole: bool
) -> None:
    tiling = rule(Product(operation, height, terms), rows, GPUS[capability])
    arguments = {**COMMON, **neighbours(operation, element), "rows": "i32"}
    # Where a norm goes before, it is a kernel of its own.
    arguments.pop("norm_weight", None)
    if tiling.split > 1:
        arguments |= {"parts": "*fp32", "counters": "*i32"}
    constants = {
        "K": terms,
        "GROUP": group,
        "GROUPS": max(1, terms // group),
        "INSIDE": element == "bf16",
        "M": tiling.block_m,
        "GATED": operation == "gated",
        "BLOCK_N": tiling.block_n,
        "SPLIT": tiling.split,
        "STAGES": tiling.stages,
        "WHOLE": whole,
        "STEP": tiling.step,
        "TERMS": tiling.terms,
        "PTX": True,
    }
    compiled = compile_for(dot_kernel, capability, arguments, constants, num_warps=tiling.warps)
    assert f".target sm_{capability}" in compiled.asm["ptx"]
    assert "prmt.b32 t, " in compiled.asm["ptx"]
    assert ("griddepcontrol.wait" in compiled.asm["ptx"]) == (capability >= 90)
    assert compiled.metadata.shared <= GPUS[capability].shared_memory
    # Words, scales and zero points reach the tensor cores' registers without a detour: what is converted is the result.
    assert compiled.asm["ttgir"].count("ttg.convert_layout") <= 4
    assert "ttg.local_alloc %w" not in compiled.asm["ttgir"]
    assert compiled.asm["cubin"]


@pytest.mark.parametrize("capability", GPUS)
@pytest.mark.parametrize("element", ["bf16", "fp16", "fp32"])
def test_turning_back_compiles(capability: int, element: str) -> None:
    arguments = {**COMMON, "out": f"*{element}"}
    constants = {"K": 2560, "GROUP": 128, "GROUPS": 20, "INSIDE": True, "BLOCK_N": 16}
    assert compile_for(dequantize_kernel, capability, arguments, constants, num_warps=4).asm["cubin"]
