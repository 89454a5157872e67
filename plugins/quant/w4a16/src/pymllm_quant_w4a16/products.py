"""Products with a 4-bit weight, together with what stands before and after them, by the kernel that a table chooses."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from pymllm.layers import RMSNorm
from pymllm.layers.kernels import LIBRARY as WHOLE
from pymllm.layers.kernels import product, rms_norm
from pymllm.layers.kernels.available import has_kernels
from pymllm_quant_w4a16.layout import Weight4, dequantize
from pymllm_quant_w4a16.tiling import GPU, LIBRARY, Operation, Product, Tiling, choose, load_table

WARM_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
"""Numbers of rows of x, of which each stands for those down to the one before."""

CPU_ROWS = 128
"""Rows of a weight that are dequantized at a time on a CPU, so that they stay in its caches."""


class Scratch:
    """Where weights are turned back into 16 bits, one at a time: one buffer of all layers of a method.

    Sizes are reserved while layers are built, so that it is allocated once, before any graph is captured.
    """

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        self._device, self._dtype = device, dtype
        self._reserved = 0
        self._buffer: Tensor | None = None

    def reserve(self, elements: int) -> None:
        """Say that a weight of so many elements will be turned back."""
        self._reserved = max(self._reserved, elements)

    def allocate(self) -> None:
        """Allocate what was reserved, on a GPU; elsewhere nothing is turned back into it."""
        if self._reserved and has_kernels(self._device):
            self.take(1, self._reserved)

    def take(self, rows: int, columns: int) -> Tensor:
        """[rows, columns], uninitialized; what was taken before is overwritten."""
        if self._buffer is None or self._buffer.numel() < rows * columns:
            size = max(self._reserved, rows * columns)
            self._buffer = torch.empty(size, dtype=self._dtype, device=self._device)
        return self._buffer[: rows * columns].view(rows, columns)


def describe(device: torch.device) -> GPU:
    """What choices depend on."""
    properties = torch.cuda.get_device_properties(device)
    # Older versions of PyTorch do not say; 99 KiB is the least of any device that the kernels run on.
    shared = getattr(properties, "shared_memory_per_block_optin", 99 * 1024)
    return GPU(properties.name, properties.multi_processor_count, shared)


@dataclass(frozen=True)
class Neighbours:
    """Of a product: norm before it, gated: silu(gate) * up after it, residual: what the result is added to, [T, N],
    contiguous, overwritten."""

    norm: RMSNorm | None = None
    gated: bool = False
    residual: Tensor | None = None

    @property
    def operation(self) -> Operation:
        """Its name in tables."""
        return "gated" if self.gated else "norm" if self.norm else "plain" if self.residual is None else "onto"


class KernelProducts:
    """The products of one weight on a GPU."""

    def __init__(self, weight: Weight4, scratch: Scratch, gpu: GPU) -> None:
        device = weight.words.device
        self._weight, self._scratch, self._gpu = weight, scratch, gpu
        self._table = load_table(gpu.name)
        self._tilings: dict[tuple[Operation, int], Tiling] = {}
        # Scales may multiply weights of 16 bits only where they are numbers of that type themselves.
        self._exact = {dtype for dtype in (torch.float16, torch.bfloat16) if weight.has_scales_of(dtype)}
        self._seen: set[tuple[Operation, bool, bool]] = set()
        self._counters = torch.zeros(-(-weight.out_features // 16) + 16, dtype=torch.int32, device=device)

    def __call__(self, x: Tensor, bias: Tensor | None, around: Neighbours) -> Tensor:
        """x: [T, K], bias: [N] or None -> [T, N], or [T, N / 2] where gated."""
        key = (around.operation, len(x))
        tiling = self._tilings.get(key)
        if tiling is None:
            tiling = self._tilings[key] = self._choose(*key, x.dtype)
            self._seen.add((around.operation, around.norm is not None, bias is not None))
        return self.run(tiling, x, bias, around)

    def run(self, tiling: Tiling, x: Tensor, bias: Tensor | None, around: Neighbours) -> Tensor:
        """The same by a tiling of the caller's; ``whole`` needs scales that are numbers of x's type."""
        weight, norm = self._weight, around.norm
        width = weight.out_features // 2 if around.gated else weight.out_features
        if tiling.kernel == "library":
            return self._library(x, bias, around)
        if norm is not None and tiling.kernel == "dot":
            x, norm = rms_norm(x, norm.weight, norm.eps), None
        x = x.contiguous()
        out = x.new_empty(len(x), width) if around.residual is None else around.residual
        if tiling.kernel == "gemv":
            from pymllm_quant_w4a16.kernels.gemv_triton import launch_gemv

            launch_gemv(
                tiling,
                x,
                weight,
                out,
                norm_weight=None if norm is None else norm.weight,
                eps=0.0 if norm is None else norm.eps,
                bias=bias,
                residual=around.residual,
                gated=around.gated,
            )
            return out
        from pymllm_quant_w4a16.kernels.dot_triton import launch_dot

        launch_dot(
            tiling,
            x,
            weight,
            out,
            bias=bias,
            residual=around.residual,
            gated=around.gated,
            counters=self._counters,
        )
        return out

    def _library(self, x: Tensor, bias: Tensor | None, around: Neighbours) -> Tensor:
        from pymllm_quant_w4a16.kernels.dequantize_triton import launch_dequantize

        whole = self._scratch.take(self._weight.out_features, self._weight.in_features)
        launch_dequantize(self._weight, whole)
        norm = around.norm
        return product(
            WHOLE,
            x,
            whole,
            norm_weight=None if norm is None else norm.weight,
            eps=0.0 if norm is None else norm.eps,
            bias=bias,
            gated=around.gated,
            residual=around.residual,
        )

    def _choose(self, operation: Operation, rows: int, dtype: torch.dtype) -> Tiling:
        if rows == 0 or dtype == torch.float32:
            return LIBRARY
        item = Product(operation, self._weight.out_features, self._weight.in_features)
        tiling = choose(item, rows, self._gpu, self._table)
        return tiling if dtype in self._exact else replace(tiling, whole=False)

    def warm(self, dtype: torch.dtype, done: set[Hashable]) -> None:
        """Run the kinds of products that ran so far with every number of rows that has kernels of its own, so that they
        are compiled. done: what was run for other weights, which is not run again, and grows."""
        weight = self._weight
        kind = (weight.in_features, weight.out_features, weight.group, weight.inside, weight.zeros is None)
        for operation, normed, biased in sorted(self._seen):
            for rows in WARM_ROWS:
                tiling = self._choose(operation, rows, dtype)
                key = (kind, operation, normed, biased, tiling, rows == 1)
                if key not in done:
                    done.add(key)
                    self._run_once(tiling, rows, operation, dtype, normed=normed, biased=biased)

    def _run_once(
        self, tiling: Tiling, rows: int, operation: Operation, dtype: torch.dtype, *, normed: bool, biased: bool
    ) -> None:
        weight, device = self._weight, self._weight.words.device
        norm = None
        if normed:
            norm = RMSNorm(weight.in_features, 1e-6, dtype=dtype, device=device)
            norm.weight.zero_()
        residual = torch.zeros(rows, weight.out_features, dtype=dtype, device=device) if operation == "onto" else None
        bias = torch.zeros(weight.out_features, dtype=dtype, device=device) if biased else None
        x = torch.zeros(rows, weight.in_features, dtype=dtype, device=device)
        self.run(tiling, x, bias, Neighbours(norm, operation == "gated", residual))


def kernel_products(weight: Weight4, scratch: Scratch) -> KernelProducts | None:
    """The products of a weight where there are kernels for its device; None elsewhere."""
    device = weight.words.device
    return KernelProducts(weight, scratch, describe(device)) if has_kernels(device) else None


def torch_product(weight: Weight4, x: Tensor, bias: Tensor | None) -> Tensor:
    """x: [T, K] -> [T, N] in x's dtype, some rows of the weight after others."""
    out = x.new_empty(len(x), weight.out_features)
    for start in range(0, weight.out_features, CPU_ROWS):
        rows = slice(start, start + CPU_ROWS)
        out[:, rows] = F.linear(x, dequantize(weight, rows, x.dtype), None if bias is None else bias[rows])
    return out
