"""Times of products with 4-bit weights on the GPU at hand, beside cuBLAS in bfloat16, for the layers of Qwen3-4B.

``python products.py`` prints the chosen tiling, the library path and bfloat16; ``--sweep`` tries others too and prints
the best as entries of ``tilings.json``, which ``--write`` puts there. Weights come from memory, not from a cache: calls
rotate over copies that no cache holds.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from itertools import product

import torch
from torch import Tensor

from pymllm.layers import RMSNorm
from pymllm.layers.kernels import LIBRARY as WHOLE
from pymllm.layers.kernels import product as whole_product
from pymllm_quant_w4a16.layout import Weight4
from pymllm_quant_w4a16.products import KernelProducts, Neighbours, Scratch, describe
from pymllm_quant_w4a16.tiling import LIBRARY, TABLE, Operation, Product, Tiling, bucket, choose, fitting, load_table

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


@dataclass
class Bench:
    """One layer with some rows of x. symmetric: without zero points."""

    name: str
    rows: int
    group: int
    symmetric: bool

    def __post_init__(self) -> None:
        self.operation, self.height, self.terms = SHAPES[self.name]
        self.device = torch.device("cuda")
        self.gpu = describe(self.device)
        self.x = torch.randn(self.rows, self.terms, device=self.device, dtype=torch.bfloat16)
        self.scratch = Scratch(self.device, torch.bfloat16)
        self.scratch.reserve(self.height * self.terms)
        self.norm = RMSNorm(self.terms, 1e-6, dtype=torch.bfloat16, device=self.device)
        self.norm.weight.data.fill_(1)
        self.width = self.height // 2 if self.operation == "gated" else self.height

    def weight(self) -> Weight4:
        """A random one."""
        words = torch.randint(-(2**31), 2**31 - 1, (self.height, self.terms // 8), device=self.device)
        groups = self.terms // self.group
        scales = torch.rand(self.height, groups, device=self.device).add_(0.5).mul_(0.01).to(torch.bfloat16)
        zeros = None if self.symmetric else torch.full_like(scales, 7, dtype=torch.uint8)
        return Weight4(words.to(torch.int32), scales, zeros, self.terms, self.group)

    @property
    def weight_bytes(self) -> int:
        """Read of a weight."""
        return self.height * (self.terms // 2 + self.terms // self.group * (2 if self.symmetric else 3))

    def neighbours(self) -> Neighbours:
        """Of the product; the residual is overwritten."""
        if self.operation == "onto":
            residual = torch.randn(self.rows, self.width, device=self.device, dtype=torch.bfloat16)
            return Neighbours(residual=residual)
        return Neighbours(self.norm, gated=self.operation == "gated")

    def time(self, tiling: Tiling) -> float:
        """Microseconds of a product."""
        copies = max(2, min(40, FRESH_BYTES // self.weight_bytes))
        layers = [KernelProducts(self.weight(), self.scratch, self.gpu) for _ in range(copies)]
        around = self.neighbours()
        return timed([lambda layer=layer: layer.run(tiling, self.x, None, around) for layer in layers])  # type: ignore[misc]

    def time_whole(self) -> float:
        """Microseconds of a product by cuBLAS in bfloat16, with kernels of their own around it."""
        copies = max(2, min(10, FRESH_BYTES // (self.height * self.terms * 2)))
        around = self.neighbours()

        def run(weight: Tensor) -> Tensor:
            norm = None if around.norm is None else around.norm.weight
            return whole_product(
                WHOLE, self.x, weight, norm_weight=norm, eps=1e-6, gated=around.gated, residual=around.residual
            )

        shape = (self.height, self.terms)
        weights = [torch.randn(shape, device=self.device, dtype=torch.bfloat16) for _ in range(copies)]
        return timed([lambda weight=weight: run(weight) for weight in weights])  # type: ignore[misc]

    def candidates(self, stages: list[int]) -> list[Tiling]:
        """Tilings worth a try, that fit."""
        if self.rows > 512:
            return []
        block_m = max(8, min(bucket(self.rows), 128))
        steps = -(-self.terms // 256)
        shapes = [(16, 1), (32, 2), (64, 4)] if self.rows <= 16 else [(64, 4), (128, 4), (128, 8)]
        splits = [split for split in (1, 2, 3, 4, 5, 6, 8) if split <= steps] if self.rows <= 128 else [1]
        tilings = [
            Tiling("dot", block_m, block_n, warps, depth, split)
            for (block_n, warps), depth, split in product(shapes, stages, splits)
        ]
        return [tiling for tiling in tilings if fitting(tiling, self.gpu) == tiling]


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


def compile_one(job: tuple[str, int, int, bool, Tiling]) -> str | None:
    """In a process of its own: so that many compile at once, into Triton's cache. Returns what went wrong."""
    *fields, tiling = job
    bench = Bench(*fields)
    try:
        KernelProducts(bench.weight(), bench.scratch, bench.gpu).run(tiling, bench.x, None, bench.neighbours())
        torch.cuda.synchronize()
    except Exception as error:
        return str(error)[:200]
    return None


def compile_all(benches: list[Bench], stages: list[int], jobs: int) -> set[tuple[str, int, int, bool, Tiling]]:
    """Compile what will be timed, and return what can be."""
    todo = [
        (bench.name, bench.rows, bench.group, bench.symmetric, tiling)
        for bench in benches
        for tiling in bench.candidates(stages)
    ]
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        faults = list(pool.map(compile_one, todo))
    for job, fault in zip(todo, faults):
        if fault:
            print(f"{job}: {fault}")
    return {job for job, fault in zip(todo, faults) if fault is None}


def report(bench: Bench, path: str, us: float, tiling: Tiling | None = None) -> None:
    """One line."""
    flops = 2 * bench.rows * bench.height * bench.terms
    moved = bench.height * bench.terms * 2 if path == "bf16" else bench.weight_bytes
    told = "" if tiling is None else " ".join(f"{key}={value}" for key, value in asdict(tiling).items())
    line = f"{bench.name:8} {bench.rows:5} rows  {path:8} {us:9.2f} us {moved / us / 1e3:7.0f} GB/s"
    print(f"{line} {flops / us / 1e6:7.1f} TFLOP/s  {told}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS)
    parser.add_argument("--layers", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--group", type=int, default=128)
    parser.add_argument("--symmetric", action="store_true")
    parser.add_argument("--sweep", action="store_true", help="try other tilings too")
    parser.add_argument("--stages", type=int, nargs="+", default=[3], help="of loads in flight, to try")
    parser.add_argument("--write", action="store_true", help="put the best into tilings.json")
    parser.add_argument("--jobs", type=int, default=12, help="processes that compile")
    given = parser.parse_args()

    benches = [Bench(name, rows, given.group, given.symmetric) for name, rows in product(given.layers, given.rows)]
    ready = compile_all(benches, given.stages, given.jobs) if given.sweep else set()
    best: dict[str, Tiling] = {}
    for bench in benches:
        item = Product(bench.operation, bench.height, bench.terms)
        chosen = choose(item, bench.rows, bench.gpu, load_table(bench.gpu.name))
        times = {LIBRARY: bench.time(LIBRARY), chosen: bench.time(chosen)}
        report(bench, "bf16", bench.time_whole())
        report(bench, "library", times[LIBRARY])
        report(bench, "chosen", times[chosen], chosen)
        for *fields, tiling in ready:
            if fields == [bench.name, bench.rows, bench.group, bench.symmetric]:
                times[tiling] = bench.time(tiling)
        for tiling in sorted(times, key=lambda tiling: times[tiling])[: 3 if given.sweep else 0]:
            report(bench, "best", times[tiling], tiling)
        best[item.key(bench.rows)] = min(times, key=lambda tiling: times[tiling])
    entries = {key: asdict(tiling) for key, tiling in best.items()}
    gpu = describe(torch.device("cuda")).name
    if given.write:
        table = json.loads(TABLE.read_text())
        table[gpu] = {**table.get(gpu, {}), **entries}
        TABLE.write_text(json.dumps(table, indent=1, sort_keys=True) + "\n")
    elif given.sweep:
        print(json.dumps({gpu: entries}, indent=1))


if __name__ == "__main__":
    main()
