"""How a product is computed: by which kernel and in which blocks.

A measured choice goes before the rules here: :mod:`pymllm.layers.kernels.tune` writes a table for a device.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Operation = Literal["plain", "norm", "gated", "onto"]
"""A product alone; after a norm; after a norm and before silu(gate) * up; added to the residual stream."""

MOST_ROWS = 64
"""Products with more rows are the library's: they read W once too, and compute faster."""


@dataclass(frozen=True)
class Tiling:
    """kernel: "library" (cuBLAS; norm, activation and residual around it are kernels of their own), "gemv" or "dot" of
    :mod:`pymllm.layers.kernels.product_triton`. block_n, block_k: outputs of a program, and terms of the sum it takes
    at a time. warps: of a program; stages: of loads in flight (dot). split: programs that share a sum over K (dot).
    """

    kernel: Literal["library", "gemv", "dot"]
    block_n: int = 0
    block_k: int = 0
    warps: int = 4
    stages: int = 1
    split: int = 1


LIBRARY = Tiling("library")


@dataclass(frozen=True)
class Product:
    """A product's kind and sizes: [T, in_features] -> [T, out_features]."""

    operation: Operation
    out_features: int
    in_features: int

    def key(self, rows: int) -> str:
        """Its name in a table, with the number of rows rounded up to a power of two."""
        return f"{self.operation} {self.out_features}x{self.in_features} {bucket(rows)}"


def bucket(rows: int) -> int:
    """The power of two at or above a number of rows."""
    return 1 << (rows - 1).bit_length()


def choose(product: Product, rows: int, processors: int, table: Mapping[str, Tiling]) -> Tiling:
    """The tiling of a product with that many rows. processors: of the device; table: measured choices by key."""
    if not 0 < rows <= MOST_ROWS:
        return LIBRARY
    return table.get(product.key(rows)) or rule(product, bucket(rows), processors)


def rule(product: Product, rows: int, processors: int) -> Tiling:
    """The choice without a measurement."""
    if rows == 1:
        return _gemv(product, processors)
    return _dot(product, rows, processors)


def _gemv(product: Product, processors: int) -> Tiling:
    # Each thread loads 16 bytes of a row at a time: 256 terms a warp.
    block_k = 512 if product.in_features % 1024 else 1024
    block_n = 4 if product.out_features >= 8 * processors else 2
    return Tiling("gemv", block_n, block_k, warps=block_k // 256)


def _dot(product: Product, rows: int, processors: int) -> Tiling:
    block_n = 32
    blocks = -(-product.out_features // block_n)
    split = 1
    while split < 8 and blocks * split * 2 <= 2 * processors and product.in_features >= 512 * split:
        split *= 2
    return Tiling("dot", block_n, 128, warps=4, stages=4, split=split)
