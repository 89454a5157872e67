"""The offline tuner: measures which kernel in which blocks is fastest for each product on this device.

Nothing of it runs while a model is served; ``pymllm warmup`` runs it and the next start reads the table it wrote.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from pymllm.layers.kernels.product import product
from pymllm.layers.kernels.table import load_table, read_table, table_path, write_table
from pymllm.layers.kernels.tiling import LIBRARY, Product, Tiling

ROWS = (1, 2, 4, 8, 16, 32, 64)

_GEMV = [(8, 1), (4, 1), (8, 2), (4, 2), (2, 2), (8, 4), (4, 4), (2, 4), (1, 4), (2, 8)]
"""block_n and warps; each thread loads 16 bytes of a row at a time, so a warp takes 256 terms."""

_DOT = [
    *((16, 256, 1, 3, split) for split in (1, 2, 4)),
    *((16, 256, 2, 3, split) for split in (1, 2, 4)),
    *((32, 128, 2, 4, split) for split in (1, 2, 4)),
    *((32, 128, 4, 4, split) for split in (1, 2, 4, 8)),
    *((64, 128, 4, 4, split) for split in (1, 2, 4, 8)),
    *((128, 64, 4, 4, split) for split in (1, 2, 4)),
]
"""block_n, block_k, warps, stages and split."""


def candidates(item: Product, rows: int, processors: int) -> list[Tiling]:
    """The tilings worth a measurement, the library's first."""
    found = [LIBRARY]
    if rows <= 4:
        for block_n, warps in _GEMV:
            # Registers hold rows * block_n sums a thread and term.
            if block_n * rows * (2 if item.operation == "gated" else 1) <= 16:
                found.append(Tiling("gemv", block_n, 256 * warps, warps))
    if rows > 1:
        for block_n, block_k, warps, stages, split in _DOT:
            programs = -(-item.out_features // block_n) * split
            enough = processors // 2 <= programs <= 8 * processors or (split == 1 and block_n >= 64)
            small = rows <= 16 or block_k < 256
            if enough and small and item.in_features >= 2 * split * block_k:
                found.append(Tiling("dot", block_n, block_k, warps, stages, split))
    return found


class Bench:
    """Measures tilings of one product inside CUDA graphs, with so many copies of the weight that L2 holds none."""

    def __init__(self, item: Product, *, device: torch.device, dtype: torch.dtype) -> None:
        self.item = item
        properties = torch.cuda.get_device_properties(device)
        self.processors = properties.multi_processor_count
        n, k = item.out_features * (2 if item.operation == "gated" else 1), item.in_features
        self.copies = max(2, min(64, -(-4 * properties.L2_cache_size // (n * k * 2))))
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
    return statistics.median(a.elapsed_time(b) for a, b in zip(marks, marks[1:])) / 1e3


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
    table = read_table(table_path(device))
    for item in sorted(set(products), key=str):
        bench = Bench(item, device=device, dtype=dtype)
        for count in rows:
            times = {tiling: _seconds(bench, tiling, count) for tiling in candidates(item, count, bench.processors)}
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
