"""All kernels compile for Jetson Orin (sm_87) and Hopper (sm_90) with the launch parameters chosen there, and fit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from pymllm.layers.kernels.codes import vector_bytes
from pymllm_attention_triton.configs import (
    BATCH_SIZES,
    CONTEXTS,
    Device,
    LaunchConfig,
    decode_config,
    halves,
    padded,
    prefill_config,
    varlen_config,
)
from pymllm_attention_triton.decode import assign_kernel, decode_kernel
from pymllm_attention_triton.prefill import prefill_kernel
from pymllm_attention_triton.varlen import varlen_kernel
from pymllm_attention_triton.write import write_kernel

DEVICES = {87: Device((8, 7), 16), 90: Device((9, 0), 132)}
SHARED_MEMORY = {87: 163 * 1024, 90: 227 * 1024}
"""Bytes that one program may have (CUDA programming guide, technical specifications per compute capability)."""

NAMES = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}
WORDS = {
    "counters": "*i32",
    "chunks": "*i32",
    "table": "*i32",
    "contexts": "*i32",
    "starts": "*i32",
    "slots": "*i64",
    **dict.fromkeys(("scales", "k_scales", "v_scales"), "*i32"),
    "scale": "fp32",
}
NUMBERS = ("table_stride", "requests", "target", "sequences", "tokens")
SHAPES = [(128, 2, torch.bfloat16), (256, 8, torch.bfloat16), (72, 1, torch.bfloat16), (256, 2, torch.float32)]
CACHES = ("cache", "k_cache", "v_cache")
FP8 = {87: "u8", 90: "fp8e4nv"}
"""What float8_e4m3fn is to a kernel: Orin cannot convert it."""

CODES = {8: "i8", 4: "u8"}
"""A byte of them, as they are written; they are read in words of 16 bits."""

CASES = [(*shape, "plain") for shape in SHAPES]
CASES += [(*SHAPES[0], "fp8"), (*SHAPES[0], 8), (*SHAPES[0], 4), (72, 2, torch.float16, 4)]
"""Head size, query heads of a KV head, activations, and how the cache is kept: a number is of bits of codes."""


def shared_memory(
    kernel: Any, capability: int, dtype: torch.dtype, config: LaunchConfig, constants: dict[str, Any], cache: str
) -> int:
    """Compile as a launch with aligned tensors would; bytes of shared memory. cache: its element type."""
    constants = {name: value for name, value in constants.items() if name in kernel.arg_names}
    if not constants.get("BITS"):
        constants.update({name: None for name in ("scales", "k_scales", "v_scales") if name in kernel.arg_names})
    signature, attributes = {}, {}
    for i, name in enumerate(kernel.arg_names):
        if name in constants:
            signature[name] = "constexpr"
        elif name in NUMBERS:
            signature[name] = "i32"
        elif name in WORDS:
            signature[name] = WORDS[name]
        else:
            signature[name] = "*fp32" if name in ("sums", "peaks") else f"*{cache if name in CACHES else NAMES[dtype]}"
            attributes[(i,)] = [["tt.divisibility", 16]]
    places = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
    source = ASTSource(kernel, signature, places, attributes)
    options = {"num_warps": config.warps, "maxnreg": config.registers or None}
    compiled = triton.compile(source, GPUTarget("cuda", capability, 32), options)
    assert f"sm_{capability}" in compiled.asm["ptx"]
    return int(compiled.metadata.shared)


@pytest.mark.parametrize("capability", DEVICES)
@pytest.mark.parametrize(("size", "group", "dtype", "kept"), CASES, ids=str)
def test_all_kernels_fit(capability: int, size: int, group: int, dtype: torch.dtype, kept: str | int) -> None:
    bits = kept if isinstance(kept, int) else 0
    device, rows, span = DEVICES[capability], triton.next_power_of_2(group), 16 // bits if bits else 1
    kv_heads, page, itemsize = 8, 16, dtype.itemsize
    main, rest = halves(size)
    stretch = 2 * page * (vector_bytes(size, bits) if bits else size)
    shared: dict[str, Any] = {
        "Q_STRIDE": (group + 2) * kv_heads * size, "K_STRIDE": (group + 2) * kv_heads * size,
        "V_STRIDE": (group + 2) * kv_heads * size, "PAGE": page,
        "BITS": bits, "KV_HEADS": kv_heads, "HEADS": kv_heads * group, "GROUP": group,
        "MERGE_ROWS": rows, "AT_ONCE": max(1, 2048 // (rows * padded(size))), "HEAD_DIM": size, "MAIN": main,
        "REST": rest, "MIXED": True, "WIDE": False, "PDL": False,
    }  # fmt: skip
    launches = [(assign_kernel, decode_config(size, itemsize, group, requests)) for requests in BATCH_SIZES]
    launches += [(decode_kernel, decode_config(size, itemsize, group, requests, bits)) for requests in BATCH_SIZES]
    launches += [(prefill_kernel, prefill_config(device, size, itemsize, group, longest)) for longest in CONTEXTS]
    launches.append((varlen_kernel, varlen_config(device, size, itemsize)))
    launches.append((write_kernel, LaunchConfig(16, 16, 4, 1)))
    for kernel, config in dict.fromkeys(launches):
        words = bits > 0 and kernel is not write_kernel
        each = 2 if words else 1
        width = size // span if words else size * bits // 8 if bits else size
        constants = {
            "D": padded(width),
            "PAGE_STRIDE": kv_heads * stretch // each,
            "HEAD_STRIDE": stretch // each,
            "ROWS": config.rows,
            "BLOCK_M": config.rows,
            "BLOCK_N": config.keys,
            "STAGES": config.stages,
            "LANES": config.lanes,
        }
        cache = "i16" if words else CODES[bits] if bits else FP8[capability] if kept == "fp8" else NAMES[dtype]
        used = shared_memory(kernel, capability, dtype, config, {**shared, **constants}, cache)
        assert used <= SHARED_MEMORY[capability], f"{kernel.__name__} with {config} needs {used} bytes"
