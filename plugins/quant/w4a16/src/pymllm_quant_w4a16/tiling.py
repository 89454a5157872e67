"""How a product is computed: by which kernel and in which blocks.

A measured choice (``tilings.json``, by GPU and product) goes before the rules here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Literal

Operation = Literal["plain", "norm", "gated", "onto"]
"""A product alone; after a norm; after a norm and before silu(gate) * up; added to the residual stream."""

MOST_ROWS = 256
"""Products with more rows turn the weight back into 16 bits once, and are the library's."""

MOST_SPLITS = 8
"""Of a sum over K."""

TABLE = Path(__file__).with_name("tilings.json")


@dataclass(frozen=True)
class Tiling:
    """kernel: "library" (dequantize, then cuBLAS), "dot" of :mod:`~pymllm_quant_w4a16.kernels.dot_triton`, or, for one
    row of x, "gemv" of :mod:`~pymllm_quant_w4a16.kernels.gemv_triton`.
    block_n: rows of W of a program (gemv: outputs). warps: of a program. stages: of loads in flight.
    block_m: rows of x of a program, split: programs that share a sum, whole: scales multiply the weights, not the sums
    of groups, terms: of K in a dot, step: and in a stage, 128 or 256, registers: at most, of a thread; 0: as the
    compiler wants (dot). chunk: blocks of 256 terms at a time, programs: that share all outputs and keep x in
    registers; 0: one for each block_n outputs (gemv)."""

    kernel: Literal["library", "dot", "gemv"]
    block_m: int = 8
    block_n: int = 32
    warps: int = 2
    stages: int = 3
    split: int = 1
    whole: bool = False
    terms: int = 32
    step: int = 256
    registers: int = 0
    programs: int = 0
    chunk: int = 2


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
    key, next_key = product.key(rows), product.key(2 * rows)
    # A choice for somewhat more rows is better than none.
    return table.get(key) or table.get(next_key) or rule(product, rows, gpu)


def rule(product: Product, rows: int, gpu: GPU) -> Tiling:
    """The choice without a measurement."""
    if rows > MOST_ROWS:
        return LIBRARY
    if rows == 1:
        return _one_row(product, gpu)
    if rows > 64:
        few = Tiling("dot", 64, 64, 4, 2, whole=True)
        return fitting(split_for(product, rows, few, gpu, 2), gpu)
    if rows > 16:
        return fitting(split_for(product, rows, Tiling("dot", max(16, bucket(rows)), 64, 4, 3), gpu, 3), gpu)
    # Scales and zero points reach the threads that need them directly where there are more threads than rows of W.
    many = product.weight_rows >= 128 * gpu.processors
    block_n, warps = (64, 4) if many else (32, 2)
    return fitting(split_for(product, rows, Tiling("dot", max(8, bucket(rows)), block_n, warps, 3), gpu, 4), gpu)


def _one_row(product: Product, gpu: GPU) -> Tiling:
    gated = product.operation == "gated"
    if product.in_features >= 4096:
        return gemv_tiling(2 if gated else 4, warps=4, chunk=16, stages=2)
    if gated:
        return gemv_tiling(2, stages=2)
    return gemv_tiling(1 if product.weight_rows < 32 * gpu.processors else 2, stages=5)


def gemv_tiling(each: int, *, warps: int = 4, chunk: int = 2, stages: int = 3, programs: int = 0) -> Tiling:
    """For one row of x: each thread has that many outputs. chunk: less than warps, or four times as many, so that
    threads load just the terms of x that go with their words of W, which then need no exchange."""
    block_n = each * 4 * warps // chunk
    return Tiling("gemv", block_n=block_n, warps=warps, stages=stages, chunk=chunk, programs=programs)


def split_for(product: Product, rows: int, tiling: Tiling, gpu: GPU, programs: int) -> Tiling:
    """The tiling split so that all is done soonest where each processor runs that many programs at a time: a whole
    wave of programs lasts as long as its longest one, and a program as its steps and about one more, or two where its
    part has to be added to others'."""
    blocks = -(-product.weight_rows // tiling.block_n) * -(-rows // tiling.block_m)
    steps = -(-product.in_features // tiling.step)

    def cost(split: int) -> int:
        waves = -(-blocks * split // (programs * gpu.processors))
        return waves * (-(-steps // split) + (2 if split > 1 else 1))

    splits = [split for split in range(1, MOST_SPLITS + 1) if split == 1 or steps >= 2 * split]
    return replace(tiling, split=min(splits, key=cost))


def fitting(tiling: Tiling, gpu: GPU) -> Tiling:
    """The tiling with as many stages as fit into shared memory."""
    bytes_of_stage = tiling.block_n * 128 + tiling.block_m * tiling.step * 2 + 512
    # Two kilobytes are the compiler's.
    stages = max(1, min(tiling.stages, (gpu.shared_memory - 2048) // bytes_of_stage))
    return replace(tiling, stages=stages)


@lru_cache
def load_table(gpu_name: str) -> Mapping[str, Tiling]:
    """The measured tilings of a GPU by key; none where it was not measured."""
    entries = json.loads(TABLE.read_text()).get(gpu_name, {})
    return {key: Tiling(**fields) for key, fields in entries.items()}
