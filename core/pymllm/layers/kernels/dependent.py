"""Programmatic dependent launch: a kernel starts, and fetches weights, while the one before it still runs.

Every kernel of this package launched so calls ``wait`` in all its programs before it touches anything that an
earlier kernel wrote, so that the order of a stream holds through any number of them. Before it, only weights are
read. Needs compute capability 9.0 and a Triton that can launch so; elsewhere everything here does nothing.

The PTX instructions are from "Parallel Synchronization and Communication Instructions: griddepcontrol" of the PTX ISA.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
import triton
import triton.language as tl


@triton.jit
def wait(PDL: tl.constexpr):
    """Until all earlier kernels of the stream have ended and their writes are visible."""
    if PDL:
        tl.inline_asm_elementwise("griddepcontrol.wait; // $0", "=r", [], dtype=tl.int32, is_pure=False, pack=1)


@triton.jit
def launch_dependents(PDL: tl.constexpr):
    """The next kernel may start once all programs of this one have come here."""
    if PDL:
        tl.inline_asm_elementwise(
            "griddepcontrol.launch_dependents; // $0", "=r", [], dtype=tl.int32, is_pure=False, pack=1
        )


@triton.jit
def prefetch(pointers):
    """Fetch the cache lines of a block of pointers into L2."""
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.u32 $0, 0;",
        "=r,l",
        [pointers.to(tl.int64)],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@lru_cache
def dependent_launch(device: torch.device) -> bool:
    """Whether kernels of this package are launched so on a device."""
    if device.type != "cuda" or torch.cuda.get_device_capability(device)[0] < 9:
        return False
    from triton.backends.nvidia.compiler import CUDAOptions

    return "launch_pdl" in CUDAOptions.__dataclass_fields__


def launch_options(device: torch.device) -> dict[str, Any]:
    """Keyword arguments of every kernel's launch: the constant PDL, and the option that goes with it."""
    return {"PDL": True, "launch_pdl": True} if dependent_launch(device) else {"PDL": False}
