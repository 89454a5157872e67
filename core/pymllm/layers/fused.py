"""Full-precision products on a GPU, each by the kernel that is fastest for its size and number of rows."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from pymllm.layers.kernels import product
from pymllm.layers.kernels.available import has_kernels
from pymllm.layers.kernels.table import describe, load_table
from pymllm.layers.kernels.tiling import Operation, Product, Tiling, choose
from pymllm.layers.norm import RMSNorm


class FusedProducts:
    """The products of one weight [N, K]; made by :func:`fuse`. Every method takes the weight and a bias [N] or None.

    products: what was asked of it so far, for the tuner.
    """

    def __init__(self, weight: Tensor) -> None:
        self.products: set[Product] = set()
        self._tilings: dict[tuple[Operation, int], Tiling] = {}
        self._gpu = describe(weight.device)
        self._table = load_table(weight.device)
        self._counters = torch.zeros(-(-len(weight) // 16), dtype=torch.int32, device=weight.device)

    def plain(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """x: [T, K] -> [T, N]."""
        return product(self._tiling("plain", x, weight), x, weight, bias=bias, counters=self._counters)

    def after_norm(self, h: Tensor, norm: RMSNorm, weight: Tensor, bias: Tensor | None) -> Tensor:
        """h: [T, K] -> [T, N], the product of norm(h)."""
        return product(
            self._tiling("norm", h, weight),
            h,
            weight,
            norm_weight=norm.weight,
            eps=norm.eps,
            bias=bias,
            counters=self._counters,
        )

    def gated(self, h: Tensor, norm: RMSNorm, weight: Tensor, bias: Tensor | None) -> Tensor:
        """h: [T, K] -> [T, N / 2], silu(gate) * up of the product of norm(h)."""
        return product(
            self._tiling("gated", h, weight),
            h,
            weight,
            norm_weight=norm.weight,
            eps=norm.eps,
            bias=bias,
            gated=True,
            counters=self._counters,
        )

    def gelu(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """x: [T, K] -> [T, N], GELU of the product, by its tanh approximation. The library's: cuBLASLt computes both at
        once, where rows are many as in vision towers."""
        return torch._addmm_activation(bias, x, weight.t(), use_gelu=True)

    def onto(self, x: Tensor, h: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """x: [T, K], h: [T, N] -> h plus the product of x; h is overwritten with it, if contiguous."""
        tiling = self._tiling("onto", x, weight)
        return product(tiling, x, weight, bias=bias, residual=h.contiguous(), counters=self._counters)

    def _tiling(self, operation: Operation, x: Tensor, weight: Tensor) -> Tiling:
        rows = len(x)
        found = self._tilings.get((operation, rows))
        if found is None:
            item = Product(operation, len(weight) // 2 if operation == "gated" else len(weight), weight.shape[1])
            self.products.add(item)
            found = self._tilings[operation, rows] = choose(item, rows, self._gpu, self._table)
        return found


def fuse(weight: Tensor) -> FusedProducts | None:
    """The fused products of a weight [N, K], or None where there are none: on a CPU, and in float32."""
    if not has_kernels(weight.device) or weight.dtype not in (torch.bfloat16, torch.float16):
        return None
    # A row is read in steps of 16 bytes.
    return FusedProducts(weight) if weight.shape[1] % 8 == 0 else None


def products_of(model: nn.Module) -> set[Product]:
    """What was asked of a model's fused layers so far, for the tuner."""
    found = (getattr(module, "_fused", None) for module in model.modules())
    return {item for fused in found if isinstance(fused, FusedProducts) for item in fused.products}
