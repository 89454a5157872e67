"""Times of products with 4-bit weights on the GPU at hand, beside cuBLAS in bfloat16, for the layers of Qwen3-4B.

``python products.py`` prints the chosen tiling, the library path and bfloat16; ``--sweep`` tries others too and prints
the best as entries of ``tilings.json``, which ``--write`` puts there, or into a file that it names. Weights come from
memory, not from a cache: calls rotate over copies that no cache holds.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from functools import cached_property
from itertools import product
from pathlib import Path

import torch
from torch import Tensor

from pymllm.layers import RMSNorm
from pymllm.layers.kernels import LIBRARY as WHOLE
from pymllm.layers.kernels import product as whole_product
from pymllm_quant_w4a16.layout import Weight4
from pymllm_quant_w4a16.products import KernelProducts, Neighbours, Scratch, describe
from pymllm_quant_w4a16.tiling import (
    LIBRARY,
    MOST_ROWS,
    TABLE,
    Operation,
    Product,
    Tiling,
    bucket,
    choose,
    fitting,
    gemv_tiling,
    load_table,
    split_for,
)

SHAPES: dict[str, tuple[Operation, int, int]] = {
    "qkv": ("norm", 6144, 2560),
    "output": ("onto", 2560, 4096),
    "gate_up": ("gated", 19456, 2560),
    "down": ("onto", 2560, 9728),
}
"""Operation, rows of the weight, inputs."""
ROWS = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192]
FRESH_BYTES = 256 << 20
"""Of copies of a weight: more than any L2 cache holds."""


GEMV = [
    (2, 4, 2, 2, 0),
    (2, 4, 2, 3, 0),
    (2, 4, 2, 5, 0),
    (1, 4, 2, 5, 0),
    (4, 4, 2, 2, 0),
    (2, 8, 2, 5, 0),
    (1, 8, 2, 5, 0),
    (1, 8, 4, 3, 0),
    (2, 8, 4, 3, 0),
    (2, 4, 1, 3, 0),
    (1, 4, 4, 3, 2),
    (1, 8, 4, 3, 1),
    (1, 4, 16, 3, 0),
    (2, 4, 16, 2, 0),
    (2, 4, 16, 3, 0),
    (4, 4, 16, 1, 0),
    (4, 4, 16, 2, 0),
    (8, 4, 16, 1, 0),
    (2, 2, 8, 5, 0),
    (4, 2, 8, 2, 0),
    (4, 2, 8, 3, 0),
    (8, 2, 8, 2, 0),
    (2, 16, 8, 2, 0),
]
"""To try for one row: outputs of a thread, warps, blocks at a time, stages, and persistent programs of a
multiprocessor."""
FEW = [(8, 16, 1, 4), (8, 32, 2, 3), (8, 32, 2, 4), (8, 64, 4, 3)]
"""Up to 16 rows of x: rows of x and W of a program, warps, and stages."""
SOME = [(16, 64, 4, 3), (16, 32, 2, 3), (16, 64, 4, 2), (16, 128, 8, 3)]
MANY = [
    Tiling("dot", 64, 64, 4, 2, terms=128),
    Tiling("dot", 64, 64, 4, 3, terms=128),
    Tiling("dot", 64, 64, 4, 3, terms=128, whole=True),
    Tiling("dot", 64, 128, 8, 2, terms=128),
    Tiling("dot", 64, 128, 8, 2, terms=64, whole=True, registers=128),
    Tiling("dot", 64, 128, 8, 2, terms=256, whole=True),
    Tiling("dot", 128, 64, 4, 2, terms=128, whole=True),
    Tiling("dot", 128, 128, 8, 2, terms=128, whole=True),
    Tiling("dot", 128, 128, 8, 2, terms=256, whole=True),
    Tiling("dot", 128, 128, 8, 2, terms=32, step=128, whole=True, registers=128),
]
"""More than 32 rows of x."""


class Layer:
    """Copies of a layer's weight, random, which all numbers of rows share. symmetric: without zero points."""

    def __init__(self, name: str, group: int, symmetric: bool, copies: int | None = None) -> None:
        self.name, self.group, self.symmetric, self._copies = name, group, symmetric, copies
        self.operation, self.height, self.terms = SHAPES[name]
        self.device = torch.device("cuda")
        self.gpu = describe(self.device)
        self.scratch = Scratch(self.device, torch.bfloat16)
        self.scratch.reserve(self.height * self.terms)
        self.item = Product(self.operation, self.height, self.terms)

    @cached_property
    def products(self) -> list[KernelProducts]:
        """Of each copy."""
        copies = self._copies or max(2, min(40, FRESH_BYTES // self.weight_bytes))
        return [KernelProducts(self._weight(), self.scratch, self.gpu) for _ in range(copies)]

    @cached_property
    def whole(self) -> list[Tensor]:
        """Copies in bfloat16."""
        copies = max(2, min(10, FRESH_BYTES // (self.height * self.terms * 2)))
        shape = (self.height, self.terms)
        return [torch.randn(shape, device=self.device, dtype=torch.bfloat16) for _ in range(copies)]

    def _weight(self) -> Weight4:
        words = torch.randint(-(2**31), 2**31 - 1, (self.height, self.terms // 8), device=self.device)
        groups = self.terms // self.group
        scales = torch.rand(self.height, groups, device=self.device).add_(0.5).mul_(0.01).to(torch.bfloat16)
        zeros = None if self.symmetric else torch.full_like(scales, 7, dtype=torch.uint8)
        return Weight4.of(words.to(torch.int32), scales, zeros, self.terms, self.group)

    @property
    def weight_bytes(self) -> int:
        """Read of a weight."""
        return self.height * (self.terms // 2 + self.terms // self.group * 4)


class Bench:
    """One layer with some rows of x."""

    def __init__(self, layer: Layer, rows: int) -> None:
        self.layer, self.rows = layer, rows
        self.x = torch.randn(rows, layer.terms, device=layer.device, dtype=torch.bfloat16)
        self.norm = RMSNorm(layer.terms, 1e-6, dtype=torch.bfloat16, device=layer.device)
        self.norm.weight.data.fill_(1)

    def neighbours(self) -> Neighbours:
        """Of the product; the residual is overwritten."""
        if self.layer.operation == "onto":
            return Neighbours(residual=torch.randn(self.rows, self.layer.height, device=self.x.device).bfloat16())
        return Neighbours(self.norm, gated=self.layer.operation == "gated")

    def run(self, tiling: Tiling) -> None:
        """Once."""
        self.layer.products[0].run(tiling, self.x, None, self.neighbours())

    def time(self, tiling: Tiling) -> float:
        """Microseconds of a product."""
        around = self.neighbours()
        calls = [lambda each=each: each.run(tiling, self.x, None, around) for each in self.layer.products]
        return timed(calls)  # type: ignore[arg-type]

    def time_whole(self) -> float:
        """Microseconds of a product by cuBLAS in bfloat16, with kernels of their own around it."""
        around = self.neighbours()
        norm = None if around.norm is None else around.norm.weight

        def run(weight: Tensor) -> Tensor:
            return whole_product(
                WHOLE, self.x, weight, norm_weight=norm, eps=1e-6, gated=around.gated, residual=around.residual
            )

        return timed([lambda weight=weight: run(weight) for weight in self.layer.whole])  # type: ignore[misc]

    def candidates(self) -> list[Tiling]:
        """Tilings worth a try, that fit."""
        found = self._one_row() if self.rows == 1 else self._dots() if self.rows <= MOST_ROWS else []
        return [tiling for tiling in dict.fromkeys(found) if fitting(tiling, self.layer.gpu) == tiling]

    def _one_row(self) -> list[Tiling]:
        """Without those that do much for nothing, or whose code is too long."""
        found = []
        for each, warps, chunk, stages, persistent in GEMV:
            steps = -(-self.layer.terms // (256 * chunk))
            if steps <= 12 and steps * chunk * 256 <= 1.3 * self.layer.terms:
                programs = persistent * self.layer.gpu.processors
                found.append(gemv_tiling(each, warps=warps, chunk=chunk, stages=min(stages, steps), programs=programs))
        return found + [tiling for tiling in self._dots() if not tiling.whole][:10]

    def _dots(self) -> list[Tiling]:
        """Of each shape, split so as to fill the device with one, two or more programs on each processor."""
        if self.rows > 32:
            fills: tuple[int, ...] = (1, 2, 3)
            plain = [tiling for tiling in MANY if tiling.block_m < 2 * self.rows]
        else:
            least = max(8, bucket(self.rows))
            shapes, fills = (FEW, (2, 4, 8)) if least <= 16 else (SOME, (1, 2, 3, 4))
            plain = [
                Tiling("dot", max(block_m, least), block_n, warps, stages, whole=whole, terms=terms)
                for block_m, block_n, warps, stages in shapes
                for whole, terms in product((False, True), (32,) if least <= 16 else (32, 128))
            ]
        found = [
            split_for(self.layer.item, self.rows, tiling, self.layer.gpu, fill) for fill in fills for tiling in plain
        ]
        return list(dict.fromkeys(found))


def timed(calls: list[Callable[[], object]], repeats: int = 5) -> float:
    """Microseconds of a call: the best of some replays of a graph of all of them."""
    calls[0]()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    best = float("inf")
    for _ in range(repeats):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        best = min(best, begin.elapsed_time(end))
    return best * 1000 / len(calls)


Job = tuple[str, int, int, bool, Tiling]
"""A layer's name, rows of x, group, whether symmetric, and a tiling."""


def compile_one(job: Job) -> str | None:
    """In a process of its own: so that many compile at once, into Triton's cache. Returns what went wrong."""
    name, rows, group, symmetric, tiling = job
    try:
        Bench(Layer(name, group, symmetric, copies=1), rows).run(tiling)
        torch.cuda.synchronize()
    except Exception as error:
        return str(error)[:200]
    return None


def compile_all(benches: list[Bench], jobs: int) -> set[tuple[str, Tiling]]:
    """Compile what will be timed, each once for all numbers of rows, and return what cannot be."""
    todo: dict[tuple[str, Tiling], Job] = {}
    for bench in benches:
        layer = bench.layer
        for tiling in (*bench.candidates(), choose(layer.item, bench.rows, layer.gpu, {})):
            job = (layer.name, bench.rows, layer.group, layer.symmetric, tiling)
            todo.setdefault((layer.name, tiling), job)
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        faults = list(pool.map(compile_one, todo.values(), chunksize=2))
    for key, fault in zip(todo, faults):
        if fault:
            print(f"{key}: {fault}")
    return {key for key, fault in zip(todo, faults) if fault}


def report(bench: Bench, path: str, us: float, tiling: Tiling | None = None) -> None:
    """One line."""
    layer = bench.layer
    flops = 2 * bench.rows * layer.height * layer.terms
    moved = layer.height * layer.terms * 2 if path == "bf16" else layer.weight_bytes
    told = "" if tiling is None else " ".join(f"{key}={value}" for key, value in asdict(tiling).items())
    line = f"{layer.name:8} {bench.rows:5} rows  {path:8} {us:9.2f} us {moved / us / 1e3:7.0f} GB/s"
    print(f"{line} {flops / us / 1e6:7.1f} TFLOP/s  {told}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS)
    parser.add_argument("--layers", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--group", type=int, default=128)
    parser.add_argument("--symmetric", action="store_true")
    parser.add_argument("--sweep", action="store_true", help="try other tilings too")
    parser.add_argument("--write", nargs="?", type=Path, const=TABLE, help="put the best into a table, tilings.json")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes that compile")
    given = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("this needs an NVIDIA GPU")

    layers = [Layer(name, given.group, given.symmetric) for name in given.layers]
    benches = [Bench(layer, rows) for layer, rows in product(layers, given.rows)]
    faulty = compile_all(benches, given.jobs) if given.sweep else set()
    best = {bench.layer.item.key(bench.rows): measure(bench, given.sweep, faulty) for bench in benches}
    entries = {key: asdict(tiling) for key, tiling in best.items()}
    gpu = describe(torch.device("cuda")).name
    if given.write:
        table = json.loads(TABLE.read_text())
        table[gpu] = {**table.get(gpu, {}), **entries}
        given.write.write_text(json.dumps(table, indent=1, sort_keys=True) + "\n")
    elif given.sweep:
        print(json.dumps({gpu: entries}, indent=1))


def measure(bench: Bench, sweep: bool, faulty: set[tuple[str, Tiling]]) -> Tiling:
    """Time a product in all its ways, report the best, and return the very best. faulty: layers and tilings that
    cannot run."""
    layer = bench.layer
    chosen = choose(layer.item, bench.rows, layer.gpu, load_table(layer.gpu.name))
    times = {LIBRARY: bench.time(LIBRARY), chosen: bench.time(chosen)}
    report(bench, "bf16", bench.time_whole())
    report(bench, "library", times[LIBRARY])
    report(bench, "chosen", times[chosen], chosen)
    if sweep:
        found = [tiling for tiling in bench.candidates() if (layer.name, tiling) not in faulty]
        times |= {tiling: bench.time(tiling) for tiling in found}
        for tiling in sorted(times, key=times.__getitem__)[:4]:
            report(bench, "best", times[tiling], tiling)
        for kind in [True, False]:
            of_kind = [tiling for tiling in found if tiling.kernel == "dot" and tiling.whole == kind]
            if of_kind:
                tiling = min(of_kind, key=times.__getitem__)
                report(bench, "scaled W" if kind else "sums", times[tiling], tiling)
    return min(times, key=times.__getitem__)


if __name__ == "__main__":
    main()
