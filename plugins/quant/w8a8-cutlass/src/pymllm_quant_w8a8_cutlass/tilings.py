"""How a product is computed: by which kernel and in which blocks. The one place where that is chosen.

The numbers were measured on an H200 by benchmarks/products.py; for other GPUs they are estimates.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pymllm_quant_w8a8_cutlass.tiles import TILES

Operation = Literal["plain", "norm", "gated", "onto"]
"""A product alone; after a norm; after a norm and before silu(gate) * up; added to the residual stream."""

MOST_TERMS = 32768
"""One row of so many terms is kept in a program's registers; longer ones are not."""

GATED_ROWS = 64
"""Up to so many rows silu(gate) * up is computed where the product is; beyond, a kernel of its own costs less."""

CUTLASS_ROWS = 64
"""Products with more rows are CUTLASS's, where it is built."""

BUSY = 0.7
"""Sums are cut until there are programs for this share of the multiprocessors."""


@dataclass(frozen=True)
class GPU:
    """What a choice depends on. processors: multiprocessors; shared_memory: bytes that a program may use; capability:
    (9, 0) and so on."""

    processors: int
    shared_memory: int
    capability: tuple[int, int]


@dataclass(frozen=True)
class Product:
    """A product's kind and sizes: [T, in_features] -> [T, out_features]."""

    operation: Operation
    out_features: int
    in_features: int

    @property
    def weight_rows(self) -> int:
        """Rows of the weight."""
        return self.out_features * (2 if self.operation == "gated" else 1)


@dataclass(frozen=True)
class Tiling:
    """kernel: "gemv" (one row), "dot" (any), both in Triton, or "cutlass" (rows of x rounded before it).
    block_m: rows of x, block_n: rows of W (gemv: outputs), block_k: terms of a program at a time. warps: of a program.
    stages: of loads in flight, split: programs that share a sum (dot). programs: at most, on the device (gemv).
    tile: number of a tile shape (cutlass).
    """

    kernel: Literal["gemv", "dot", "cutlass"]
    block_m: int = 1
    block_n: int = 1
    block_k: int = 0
    warps: int = 4
    stages: int = 1
    split: int = 1
    programs: int = 0
    tile: int = 0


def choose(product: Product, rows: int, gpu: GPU, *, cutlass: bool) -> Tiling:
    """The tiling of a product with that many rows, at least one. cutlass: whether its kernels can serve it."""
    if rows == 1 and product.in_features <= MOST_TERMS:
        return gemv_tiling(product, gpu)
    if cutlass and rows > CUTLASS_ROWS and product.operation != "gated":
        return Tiling("cutlass", tile=cutlass_tile(product, rows, gpu))
    if rows <= 128:
        # What counts is W's traffic. Two blocks of 64 rows find it in the second-level cache.
        deep = rows <= 16 or product.in_features >= 8192
        return dot_tiling(
            product, gpu, block_m=min(64, max(16, bucket(rows))), block_n=64, block_k=256 if deep else 128,
            stages=3 if deep else 5, rows=rows,
        )  # fmt: skip
    many = rows > 512 and gpu.capability[0] >= 9
    return dot_tiling(
        product, gpu, block_m=256 if many else 128, block_n=128, block_k=128, stages=4, warps=8, rows=rows
    )


def gemv_tiling(product: Product, gpu: GPU) -> Tiling:
    """For one row: programs that stay, with some kilobytes of W in flight and as many on their way."""
    words = bucket(-(-product.in_features // 4))
    warps = max(4, min(16, words // 512))
    if product.operation == "gated":
        # Two rows of W an output.
        return Tiling("gemv", block_n=max(1, min(2, 1024 // words)), warps=warps, programs=8 * gpu.processors)
    programs = (4 if words <= 1024 else 2) * gpu.processors
    return Tiling("gemv", block_n=max(1, min(8, 16384 // words)), warps=warps, programs=programs)


def dot_tiling(
    product: Product,
    gpu: GPU,
    *,
    block_m: int,
    block_n: int,
    block_k: int,
    stages: int,
    warps: int = 4,
    rows: int = 1,
) -> Tiling:
    """Blocks for tensor cores with as many stages as fit, split so that few of them still fill the device."""
    blocks = -(-product.weight_rows // block_n) * -(-rows // block_m)
    steps = -(-product.in_features // block_k)
    splits = [split for split in (1, 2, 4, 8) if split == 1 or steps >= 2 * split]
    split = next((split for split in splits if blocks * split >= BUSY * gpu.processors), splits[-1])
    # Half a kilobyte is the compiler's.
    fitting = (gpu.shared_memory - 512) // (block_k * (block_m + block_n))
    return Tiling("dot", block_m, block_n, block_k, warps, max(1, min(stages, fitting)), split)


def cutlass_tile(product: Product, rows: int, gpu: GPU) -> int:
    """The number of a tile shape in :mod:`~pymllm_quant_w8a8_cutlass.tiles`."""
    tiles = TILES[gpu.capability]

    def fills(number: int) -> bool:
        tile = tiles[number]
        return -(-rows // tile.m) * -(-product.weight_rows // tile.n) >= gpu.processors

    if gpu.capability != (9, 0):
        return max((number for number in range(len(tiles)) if fills(number)), default=0)
    if rows <= 512 or not fills(1):
        return 0
    if rows <= 3072:
        return 1
    return 2 if product.weight_rows >= 4096 or not fills(3) else 3


def bucket(rows: int) -> int:
    """The power of two at or above a number of rows."""
    return 1 << (rows - 1).bit_length()
