"""How a product is computed: by which kernel and in which blocks.

A measured choice goes before the rules here: :mod:`pymllm.layers.kernels.tune` writes a table for a device.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Operation = Literal["plain", "norm", "gated", "onto"]
"""A product alone; after a norm; after a norm and before silu(gate) * up; added to the residual stream."""

MOST_ROWS = 128
"""Products with more rows are the library's: they read W once too, and compute faster."""

FEW_ROWS = 64
"""Up to so many rows tensor-core kernels of ours serve all products, beyond them those of a small model's MLP."""


@dataclass(frozen=True)
class Tiling:
    """kernel: "library" (cuBLAS; norm, activation and residual around it are kernels of their own), for one row "gemv"
    or "resident" of :mod:`~pymllm.layers.kernels.gemv_triton`, for more "dot" of
    :mod:`~pymllm.layers.kernels.dot_triton`.
    block_n: outputs of a program at a time (dot: rows of W). block_k: terms of the sum at a time. warps: of a program.
    stages: of loads in flight, split: programs that share a sum (dot). programs: at most, on the device (resident).
    """

    kernel: Literal["library", "gemv", "resident", "dot"]
    block_n: int = 0
    block_k: int = 0
    warps: int = 4
    stages: int = 1
    split: int = 1
    programs: int = 0


LIBRARY = Tiling("library")


@dataclass(frozen=True)
class GPU:
    """What a choice depends on. processors: multiprocessors; shared_memory: bytes that a program may use."""

    processors: int
    shared_memory: int


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

    def key(self, rows: int) -> str:
        """Its name in a table, with the number of rows rounded up to a power of two."""
        return f"{self.operation} {self.out_features}x{self.in_features} {bucket(rows)}"


def bucket(rows: int) -> int:
    """The power of two at or above a number of rows."""
    return 1 << (rows - 1).bit_length()


def choose(product: Product, rows: int, gpu: GPU, table: Mapping[str, Tiling]) -> Tiling:
    """The tiling of a product with that many rows. table: measured choices by key."""
    if not 0 < rows <= MOST_ROWS:
        return LIBRARY
    return table.get(product.key(rows)) or rule(product, rows, gpu)


def rule(product: Product, rows: int, gpu: GPU) -> Tiling:
    """The choice without a measurement, for 1 to 128 rows: what was best on an H200, as far as a rule can say it."""
    if rows > FEW_ROWS:
        short = product.operation == "gated" and product.in_features <= 1024
        return dot_tiling(product, rows, gpu, block_k=64, stages=5) if short else LIBRARY
    return _one_row(product, gpu) if rows == 1 else _few_rows(product, rows, gpu)


def _one_row(product: Product, gpu: GPU) -> Tiling:
    terms, outputs = product.in_features, product.out_features
    if product.operation in ("norm", "gated") and 1024 < terms <= 4096:
        # Norming a long x once for many outputs pays.
        block_n = 1 if product.operation == "gated" else 2
        return Tiling("resident", block_n, bucket(terms), warps=8, programs=4 * gpu.processors)
    few = outputs < 16 * gpu.processors
    if few and terms >= 2048:
        return Tiling("gemv", 2, 2048, warps=8)
    # Each thread loads 16 bytes of a row at a time: 256 terms a warp.
    block_k = min(1024, max(256, bucket(terms)))
    many = outputs >= 64 * gpu.processors or (terms <= 1024 and not few)
    return Tiling("gemv", 4 if many else 2, block_k, warps=block_k // 256)


def _few_rows(product: Product, rows: int, gpu: GPU) -> Tiling:
    wide = dot_tiling(product, rows, gpu, block_k=256, stages=3)
    # Where few programs share a processor, each has to have more in flight.
    alone = product.weight_rows <= 2 * gpu.processors * wide.block_n
    return wide if alone and rows <= 32 and wide.stages == 3 else dot_tiling(product, rows, gpu)


def dot_tiling(product: Product, rows: int, gpu: GPU, *, block_k: int = 128, stages: int = 4, waves: int = 1) -> Tiling:
    """A tiling for tensor cores with as many stages as fit, split so that the device is full that many times over."""
    block_n = 64
    steps = -(-product.in_features // block_k)
    blocks = -(-product.weight_rows // block_n)
    splits = [split for split in (1, 2, 3, 4, 6, 8) if split == 1 or steps >= 2 * split]
    split = min(splits, key=lambda split: abs(blocks * split - waves * gpu.processors))
    bytes_of_stage = 2 * block_k * (block_n + max(16, bucket(rows)))
    # Half a kilobyte is the compiler's.
    fitting = (gpu.shared_memory - 512) // bytes_of_stage
    return Tiling("dot", block_n, block_k, warps=4, stages=max(1, min(stages, fitting)), split=split)
