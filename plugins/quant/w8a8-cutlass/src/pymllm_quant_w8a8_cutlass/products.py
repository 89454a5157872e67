"""The products of a layer on a GPU, each with what stands before and after it, by the kernels chosen for it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pymllm.layers import RMSNorm, silu_and_mul
from pymllm.layers.kernels.available import has_kernels
from pymllm_quant_w8a8_cutlass.library import Library
from pymllm_quant_w8a8_cutlass.tilings import GATED_ROWS, GPU, Operation, Product, Tiling, choose


class Products:
    """Of a weight int8 [N, K], its scales [N] and a bias [N] or None; made by :func:`products_of`."""

    def __init__(self, weight: Tensor, weight_scale: Tensor, bias: Tensor | None, library: Library) -> None:
        self.weight, self.weight_scale, self.bias = weight, weight_scale, bias
        self._library = library
        self._gpu = describe(weight.device)
        self._tilings: dict[tuple[Operation, int, bool], Tiling] = {}
        # A sum is cut only where there are fewer blocks than multiprocessors.
        self._counters = torch.zeros(self._gpu.processors, dtype=torch.int32, device=weight.device)

    def plain(self, x: Tensor) -> Tensor:
        """x: [T, K] -> [T, N]."""
        return self._run("plain", x)

    def after_norm(self, h: Tensor, norm: RMSNorm) -> Tensor:
        """h: [T, K] -> [T, N], the product of norm(h)."""
        return self._run("norm", h, norm=norm)

    def gated(self, h: Tensor, norm: RMSNorm | None) -> Tensor:
        """h: [T, K] -> [T, N / 2], silu(gate) * up of the product of norm(h), or of h."""
        if len(h) > GATED_ROWS:
            return silu_and_mul(self._run("norm" if norm else "plain", h, norm=norm))
        return self._run("gated", h, norm=norm)

    def onto(self, x: Tensor, h: Tensor) -> Tensor:
        """x: [T, K], h: [T, N] -> h plus the product of x; h is overwritten with it, if contiguous."""
        return self._run("onto", x, residual=h.contiguous())

    def onto_gated(self, gate_up: Tensor, h: Tensor) -> Tensor:
        """gate_up: [T, 2 K], h: [T, N] -> h plus the product of silu(gate) * up, which is rounded where it is made."""
        from pymllm_quant_w8a8_cutlass.kernels.rows_triton import launch_quantize

        rounded, scale = launch_quantize(gate_up.contiguous(), gated=True)
        out = h.contiguous()
        self._multiply(self._tiling("onto", len(h), len(self.weight)), rounded, scale, out, residual=out)
        return out

    def _run(
        self, operation: Operation, x: Tensor, *, norm: RMSNorm | None = None, residual: Tensor | None = None
    ) -> Tensor:
        x = x.contiguous()
        gated = operation == "gated"
        width = len(self.weight) // 2 if gated else len(self.weight)
        out = x.new_empty(len(x), width) if residual is None else residual
        if not len(x):
            return out
        tiling = self._tiling(operation, len(x), width)
        before: dict[str, Any] = {} if norm is None else {"norm_weight": norm.weight, "eps": norm.eps}
        if tiling.kernel == "gemv":
            from pymllm_quant_w8a8_cutlass.kernels.gemv_triton import launch_gemv

            after: dict[str, Any] = {"bias": self.bias, "residual": residual, "gated": gated}
            launch_gemv(tiling, x, self.weight, self.weight_scale, out, **before, **after)
            return out
        from pymllm_quant_w8a8_cutlass.kernels.rows_triton import launch_quantize

        rounded, scale = launch_quantize(x, **before)
        self._multiply(tiling, rounded, scale, out, residual=residual, gated=gated)
        return out

    def _multiply(
        self, tiling: Tiling, x: Tensor, scale: Tensor, out: Tensor, *, residual: Tensor | None, gated: bool = False
    ) -> None:
        """The product of rounded rows."""
        operands = (x, scale, self.weight, self.weight_scale, out)
        if tiling.kernel == "cutlass":
            kernel = self._library.kernel(tiling.tile, residual=residual is not None)
            kernel(*operands, bias=self.bias, residual=residual)
            return
        from pymllm_quant_w8a8_cutlass.kernels.dot_triton import launch_dot

        launch_dot(tiling, *operands, bias=self.bias, residual=residual, gated=gated, counters=self._counters)

    def _tiling(self, operation: Operation, rows: int, width: int) -> Tiling:
        cutlass = self._library.serves(*self.weight.shape)
        key = (operation, rows, cutlass)
        found = self._tilings.get(key)
        if found is None:
            product = Product(operation, width, self.weight.shape[1])
            found = self._tilings[key] = choose(product, rows, self._gpu, cutlass=cutlass)
        return found


def describe(device: torch.device) -> GPU:
    """What choices depend on."""
    properties = torch.cuda.get_device_properties(device)
    # Older versions of PyTorch do not say; 99 KiB is the least of any device that the kernels run on.
    shared = getattr(properties, "shared_memory_per_block_optin", 99 * 1024)
    return GPU(properties.multi_processor_count, shared, (properties.major, properties.minor))


def products_of(weight: Tensor, weight_scale: Tensor, bias: Tensor | None, library: Library) -> Products | None:
    """The products of a weight, or None where there are no kernels for its device."""
    return Products(weight, weight_scale, bias, library) if has_kernels(weight.device) else None
