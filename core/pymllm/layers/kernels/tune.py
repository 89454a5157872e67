"""The offline tuner: measures which kernel in which blocks is fastest for each product on this device.

Nothing of it runs while a model is served; ``pymllm warmup`` runs it and the next start reads the table it wrote.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from pymllm.layers.kernels.product import product
from pymllm.layers.kernels.table import describe, load_table, read_table, table_path, write_table
from pymllm.layers.kernels.tiling import GPU, LIBRARY, Product, Tiling, bucket, dot_tiling

ROWS = (1, 2, 4, 8, 16, 32, 64, 128)

_GEMV = ((8, 4), (4, 4), (4, 2), (2, 2), (2, 4), (2, 8))
"""block_n and warps; each thread loads 16 bytes of a row at a time, so a warp takes 256 terms."""

_RESIDENT = ((1, 8), (2, 8), (4, 8), (2, 4), (4, 4), (2, 16))
"""block_n and warps."""


def candidates(item: Product, rows: int, gpu: GPU) -> list[Tiling]:
    """The tilings worth a measurement, the library's first."""
    found = [LIBRARY]
    if rows == 1:
        found += [Tiling("gemv", block_n, 256 * warps, warps) for block_n, warps in _GEMV]
        width = bucket(item.in_features)
        for block_n, warps in _RESIDENT:
            # A thread holds 8 to 32 terms of x.
            if 256 * warps <= width <= 1024 * warps:
                for each in (2, 4):
                    found.append(Tiling("resident", block_n, width, warps, programs=each * gpu.processors))
    else:
        shapes = ((128, 4), (256, 3), (64, 8))
        found += [dot_tiling(item, rows, gpu, block_k=k, stages=s, waves=w) for k, s in shapes for w in (1, 2)]
    return list(dict.fromkeys(found))


class Bench:
    """Measures tilings of one product inside CUDA graphs, with so many copies of the weight that L2 holds none."""

    def __init__(self, item: Product, *, device: torch.device, dtype: torch.dtype) -> None:
        self.item = item
        n, k = item.weight_rows, item.in_features
        cache = torch.cuda.get_device_properties(device).L2_cache_size
        self.copies = max(2, min(64, -(-4 * cache // (n * k * 2))))
        self.weights = torch.randn(self.copies, n, k, device=device, dtype=dtype).mul_(k**-0.5)
        self.norm = torch.rand(k, device=device, dtype=dtype) + 0.5
        self.counters = torch.zeros(-(-n // 16), device=device, dtype=torch.int32)

    def call(self, tiling: Tiling, x: Tensor, stream: Tensor | None, copy: int = 0) -> Tensor:
        """The product once. stream: [T, N] residual, of "onto"."""
        normed = self.item.operation in ("norm", "gated")
        return product(
            tiling,
            x,
            self.weights[copy],
            norm_weight=self.norm if normed else None,
            eps=1e-6,
            gated=self.item.operation == "gated",
            residual=stream if self.item.operation == "onto" else None,
            counters=self.counters,
        )

    def inputs(self, rows: int) -> tuple[Tensor, Tensor | None]:
        """x and the residual for that many rows."""
        x = torch.randn(rows, self.item.in_features, device=self.weights.device, dtype=self.weights.dtype)
        return x, x.new_zeros(rows, self.item.out_features) if self.item.operation == "onto" else None

    def seconds(self, tiling: Tiling, rows: int) -> float:
        """Of one product within a graph of many; the median of several replays."""
        x, stream = self.inputs(rows)
        return graph_seconds(lambda: [self.call(tiling, x, stream, copy) for copy in range(self.copies)]) / self.copies


def graph_seconds(work: Callable[[], object], replays: int = 9) -> float:
    """Seconds of some GPU work as a CUDA graph: the median of several replays."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        work()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    for _ in range(2):
        graph.replay()
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(replays + 1)]
    marks[0].record()
    for mark in marks[1:]:
        graph.replay()
        mark.record()
    torch.cuda.synchronize()
    return statistics.median(a.elapsed_time(b) for a, b in pairwise(marks)) / 1e3


def tune(
    products: Iterable[Product],
    *,
    device: torch.device,
    dtype: torch.dtype,
    rows: Sequence[int] = ROWS,
    report: Callable[[str], None] = lambda line: None,
) -> dict[str, Tiling]:
    """Measure the products (see ``FusedProducts.products``) with those numbers of rows, powers of two, and add the
    fastest tilings to the device's table, which is returned. report: is told each choice. Raises OSError when the
    table cannot be written."""
    table, gpu = read_table(table_path(device)), describe(device)
    for item in sorted(set(products), key=str):
        bench = Bench(item, device=device, dtype=dtype)
        for count in rows:
            times = {tiling: _seconds(bench, tiling, count) for tiling in candidates(item, count, gpu)}
            best = table[item.key(count)] = min(times, key=lambda tiling: times[tiling])
            report(f"{item.key(count)}: {best} {times[best] * 1e6:.1f} us (library {times[LIBRARY] * 1e6:.1f} us)")
    write_table(table_path(device), table)
    load_table.cache_clear()
    return table


def _seconds(bench: Bench, tiling: Tiling, rows: int) -> float:
    from triton.runtime.errors import OutOfResources

    try:
        return bench.seconds(tiling, rows)
    except OutOfResources:  # a small device has less shared memory
        return float("inf")
