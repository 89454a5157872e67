"""How a product is computed: by which kernel and in which blocks.

A measured choice (``tilings.json``, by GPU and product) goes before the rules here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

Operation = Literal["plain", "norm", "gated", "onto"]
"""A product alone; after a norm; after a norm and before silu(gate) * up; added to the residual stream."""

MOST_ROWS = 256
"""Products with more rows turn the weight back into 16 bits once, and are the library's."""

TABLE = Path(__file__).with_name("tilings.json")


@dataclass(frozen=True)
class Tiling:
    """kernel: "library" (dequantize, then cuBLAS), or "dot" of :mod:`~pymllm_quant_w4a16.kernels.dot_triton`.
    block_m: rows of x of a program. block_n: rows of W of a program. warps: of a program. stages: of loads in flight.
    split: programs that share a sum."""

    kernel: Literal["library", "dot"]
    block_m: int = 8
    block_n: int = 32
    warps: int = 2
    stages: int = 3
    split: int = 1


LIBRARY = Tiling("library")


@dataclass(frozen=True)
class GPU:
    """What a choice depends on. processors: multiprocessors; shared_memory: bytes that a program may use."""

    name: str
    processors: int
    shared_memory: int


@dataclass(frozen=True)
class Product:
    """A product's kind and the size of its weight, [weight_rows, in_features]."""

    operation: Operation
    weight_rows: int
    in_features: int

    def key(self, rows: int) -> str:
        """Its name in a table, with the number of rows of x rounded up to a power of two."""
        return f"{self.operation} {self.weight_rows}x{self.in_features} {bucket(rows)}"


def bucket(rows: int) -> int:
    """The power of two at or above a number of rows."""
    return 1 << (rows - 1).bit_length()


def choose(product: Product, rows: int, gpu: GPU, table: Mapping[str, Tiling]) -> Tiling:
    """The tiling of a product with that many rows of x. table: measured choices by key."""
    return table.get(product.key(rows)) or rule(product, rows, gpu)


def rule(product: Product, rows: int, gpu: GPU) -> Tiling:
    """The choice without a measurement."""
    if rows > MOST_ROWS:
        return LIBRARY
    if rows > 64:
        return fitting(Tiling("dot", block_m=bucket(min(rows, 128)), block_n=128, warps=8, stages=3), gpu)
    if rows > 16:
        return fitting(split_for(product, Tiling("dot", max(16, bucket(rows)), 64, 4, 3), gpu, 4), gpu)
    # Scales and zero points reach the threads that need them directly where there are more threads than rows of W.
    many = product.weight_rows >= 128 * gpu.processors
    block_n, warps = (64, 4) if many else (32, 2)
    return fitting(split_for(product, Tiling("dot", max(8, bucket(rows)), block_n, warps, 3), gpu, 6), gpu)


def split_for(product: Product, tiling: Tiling, gpu: GPU, programs: int) -> Tiling:
    """The tiling split so that each processor has about that many programs, each with two steps or more."""
    blocks = -(-product.weight_rows // tiling.block_n)
    steps = -(-product.in_features // 256)
    splits = [split for split in (1, 2, 3, 4, 5, 6, 8) if split == 1 or steps >= 2 * split]
    split = min(splits, key=lambda split: abs(blocks * split - programs * gpu.processors))
    return Tiling(tiling.kernel, tiling.block_m, tiling.block_n, tiling.warps, tiling.stages, split)


def fitting(tiling: Tiling, gpu: GPU) -> Tiling:
    """The tiling with as many stages as fit into shared memory."""
    bytes_of_stage = tiling.block_n * 128 + tiling.block_m * 512 + 512
    # Two kilobytes are the compiler's.
    stages = max(1, min(tiling.stages, (gpu.shared_memory - 2048) // bytes_of_stage))
    return Tiling(tiling.kernel, tiling.block_m, tiling.block_n, tiling.warps, stages, tiling.split)


@lru_cache
def load_table(gpu_name: str) -> Mapping[str, Tiling]:
    """The measured tilings of a GPU by key; none where it was not measured."""
    entries = json.loads(TABLE.read_text()).get(gpu_name, {})
    return {key: Tiling(**fields) for key, fields in entries.items()}
