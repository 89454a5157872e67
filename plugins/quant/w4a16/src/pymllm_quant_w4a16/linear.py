"""The linear layer with 4-bit weights."""

from __future__ import annotations

from collections.abc import Callable, Hashable

import torch
from torch import Tensor, nn

from pymllm.interfaces import Linear, LinearSpec
from pymllm.layers import RMSNorm
from pymllm_quant_w4a16.layout import SYMMETRIC, Weight4, pack, words_of
from pymllm_quant_w4a16.products import KernelProducts, Neighbours, Scratch, kernel_products, torch_product

PACKED_ROWS = 2048
"""Rows that are packed at a time while loading, to bound what that takes."""


class W4A16Linear(Linear):
    """y = x W^T + b, W = (codes - zeros) * scales in groups of inputs.

    words: the codes in the layout of :mod:`pymllm_quant_w4a16.layout`; scales: float32 [N, groups], zeros: uint8
    [N, groups], until ``finalize`` brings both into that layout; bias: as the spec says.
    """

    words: Tensor
    scales: Tensor
    zeros: Tensor | None
    bias: Tensor | None

    def __init__(self, spec: LinearSpec, group: int, scratch: Scratch) -> None:
        super().__init__()
        rows, terms, device = sum(spec.out_features), spec.in_features, spec.device
        self.in_features, self._group, self._scratch = terms, group, scratch
        self._dtype = spec.dtype
        self._weight: Weight4 | None = None
        self._kernels: KernelProducts | None = None
        groups = terms // group
        self.register_buffer("words", torch.zeros(rows, words_of(terms), dtype=torch.int32, device=device))
        self.register_buffer("scales", torch.zeros(rows, groups, device=device))
        self.register_buffer("zeros", torch.full((rows, groups), SYMMETRIC, dtype=torch.uint8, device=device))
        self.bias = None
        if spec.bias:
            self.bias = nn.Parameter(torch.empty(rows, dtype=spec.dtype, device=device), requires_grad=False)
        scratch.reserve(rows * terms)

    # Filled by readers. rows: of the fused layer; the tensors are on the layer's device.

    def put_codes(self, rows: slice, codes: Tensor) -> None:
        """codes: uint8 [len(rows), K], 0 to 15."""
        for start in range(0, len(codes), PACKED_ROWS):
            part = codes[start : start + PACKED_ROWS]
            first = rows.start + start
            self.words[first : first + len(part)] = pack(part)

    def put_scales(self, rows: slice, scales: Tensor) -> None:
        """scales: [len(rows), groups]."""
        self.scales[rows] = scales.float()

    def put_zeros(self, rows: slice, zeros: Tensor) -> None:
        """zeros: [len(rows), groups], 0 to 16."""
        assert self.zeros is not None, "weights are loaded before they are finalized"
        self.zeros[rows] = zeros.to(torch.uint8)

    def finalize(self) -> None:
        if self._weight is not None:
            return
        self._weight = Weight4.of(self.words, self.scales, self.zeros, self.in_features, self._group)
        self.scales, self.zeros = self._weight.scales, self._weight.zeros
        self._kernels = kernel_products(self._weight, self._scratch)
        if self._kernels is not None:
            self.fusions = frozenset({"norm", "activation", "residual"})

    def warm(self, done: set[Hashable]) -> None:
        """Compile the kernels that it may need; see :meth:`KernelProducts.warm`."""
        if self._kernels is not None:
            self._kernels.warm(self._dtype, done)

    def forward(self, x: Tensor) -> Tensor:
        if self._kernels is not None:
            return self._kernels(x, self.bias, Neighbours())
        assert self._weight is not None, "finalize the layer before it runs"
        return torch_product(self._weight, x, self.bias)

    def after_norm(self, h: Tensor, norm: Callable[[Tensor], Tensor]) -> Tensor:
        if self._kernels is not None and isinstance(norm, RMSNorm):
            return self._kernels(h, self.bias, Neighbours(norm))
        return super().after_norm(h, norm)

    def gated(self, h: Tensor, norm: Callable[[Tensor], Tensor] | None = None) -> Tensor:
        if self._kernels is not None and (norm is None or isinstance(norm, RMSNorm)):
            return self._kernels(h, self.bias, Neighbours(norm, gated=True))
        return super().gated(h, norm)

    def onto(self, x: Tensor, h: Tensor) -> Tensor:
        if self._kernels is not None:
            return self._kernels(x, self.bias, Neighbours(residual=h.contiguous()))
        return super().onto(x, h)
