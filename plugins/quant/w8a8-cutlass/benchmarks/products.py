"""Times every way to compute a layer's products on the GPU at hand, and says which is best for each number of rows.

    python benchmarks/products.py [--rows 1,2,4,...] [--dtype bfloat16] [--layers qkv,o] [--search] [--triton]

For each layer of Qwen3-4B and each number of rows: microseconds with what stands before (norm, rounding) and after
(activation, residual), of the table's choice, of each CUTLASS tile, of each Triton tiling (--search: of many), and of
bfloat16 in the core's own layers. Each time is the median over replays of a CUDA graph that works through as many
copies of the weight as exceed the second-level cache.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace

import torch
from torch import Tensor

from pymllm.interfaces import LinearSpec, WeightMap
from pymllm.layers import FullPrecision, RMSNorm
from pymllm_quant_w8a8_cutlass.layer import W8A8Linear
from pymllm_quant_w8a8_cutlass.library import Library
from pymllm_quant_w8a8_cutlass.plugin import Kernels
from pymllm_quant_w8a8_cutlass.products import describe
from pymllm_quant_w8a8_cutlass.tiles import TILES
from pymllm_quant_w8a8_cutlass.tilings import (
    GATED_ROWS,
    GPU,
    Operation,
    Product,
    Tiling,
    bucket,
    choose,
    dot_tiling,
    gemv_tiling,
)

LAYERS: dict[str, tuple[Operation, int, int]] = {
    "qkv": ("norm", 6144, 2560),
    "o": ("onto", 2560, 4096),
    "gate_up": ("gated", 9728, 2560),
    "down": ("onto", 2560, 9728),
}
"""Of Qwen3-4B: what is asked of the layer, outputs, terms."""

MOST_SEARCHED = 256
"""Rows up to which Triton tilings are searched."""

CACHE = 256 * 2**20
"""Bytes of weights that no second-level cache holds."""

DEVICE = torch.device("cuda")


def layers(
    product: Product, dtype: torch.dtype, library: Library | None, copies: int | None = None
) -> list[torch.nn.Module]:
    """Copies of a layer with random weights, more than a cache holds; full precision without a library."""
    bytes_of = product.weight_rows * product.in_features * (2 if library is None else 1)
    widths = (product.out_features,) * (2 if product.operation == "gated" else 1)
    names = tuple(f"part{index}" for index in range(len(widths)))
    made = []
    for _ in range(copies or max(2, CACHE // bytes_of)):
        spec = LinearSpec(names, product.in_features, widths, False, dtype, DEVICE)
        if library is None:
            layer = FullPrecision().linear(spec, WeightMap())
            layer.weight.data.normal_(0, 0.02)
        else:
            layer = W8A8Linear(spec, WeightMap(), library=library, online=False)
            layer.weight.data.random_(-127, 128)
            layer.weight_scale.data.fill_(1e-4)
        layer.finalize()
        made.append(layer)
    return made


def call(layer: torch.nn.Module, operation: Operation, norm: RMSNorm, x: Tensor, h: Tensor) -> None:
    """What a model asks of the layer."""
    if operation == "gated":
        layer.gated(x, norm)
    elif operation == "norm":
        layer.after_norm(x, norm)
    else:
        layer.onto(x, h)


@torch.inference_mode()
def microseconds(made: list[torch.nn.Module], product: Product, rows: int, dtype: torch.dtype) -> float:
    """Of one call, the median of 15 replays."""
    norm = RMSNorm(product.in_features, 1e-6, dtype=dtype, device=DEVICE)
    norm.weight.data.fill_(1.0)
    x = torch.randn(rows, product.in_features, device=DEVICE, dtype=dtype)
    h = torch.zeros(rows, product.out_features, device=DEVICE, dtype=dtype)

    def all_layers() -> None:
        for layer in made:
            call(layer, product.operation, norm, x, h)

    all_layers()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        all_layers()
    times = []
    for _ in range(18):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1000 / len(made))
    return sorted(times[3:])[7]


def forced(made: list[torch.nn.Module], tiling: Tiling) -> Callable[[], None]:
    """Make the layers use one tiling; the result undoes it."""
    kept = [layer._products._tiling for layer in made]
    for layer in made:
        layer._products._tiling = lambda *_: tiling

    def undo() -> None:
        for layer, before in zip(made, kept):
            layer._products._tiling = before

    return undo


def candidates(product: Product, rows: int, gpu: GPU, tiles: int, search: bool) -> Iterator[Tiling]:
    """What may be fastest."""
    if product.operation != "gated" or rows > GATED_ROWS:
        yield from (Tiling("cutlass", tile=number) for number in range(tiles))
    yield choose(product, rows, gpu, cutlass=False)
    if search and rows == 1:
        base = gemv_tiling(product, gpu)
        for block_n, warps, share in itertools.product((1, 2, 4, 8), (4, 8), (2, 4, 8)):
            yield replace(base, block_n=block_n, warps=warps, programs=base.programs * share // 4)
    if search and rows <= MOST_SEARCHED:
        heights = (64, 128) if rows > 64 else (max(16, bucket(rows)),)
        widths, depths = ((64, 4), (128, 4), (128, 8)), ((128, 5), (256, 3))
        for block_m, (block_n, warps), (block_k, stages) in itertools.product(heights, widths, depths):
            block = {"block_m": block_m, "block_n": block_n, "block_k": block_k}
            usual = dot_tiling(product, gpu, **block, stages=stages, warps=warps, rows=rows)
            steps = -(-product.in_features // block_k)
            yield from (replace(usual, split=split) for split in (1, 2, 4, 8) if 2 * split <= steps or split == 1)


def compile_one(job: tuple[str, int, str, Tiling]) -> None:
    """In a process of its own, so that many compile at once, into Triton's cache. Errors show when it is timed."""
    name, rows, dtype, tiling = job
    product = Product(*LAYERS[name])
    library = Library(Kernels.triton, describe(DEVICE), getattr(torch, dtype))
    made = layers(product, getattr(torch, dtype), library, copies=1)
    forced(made, tiling)
    with contextlib.suppress(Exception):
        microseconds(made, product, rows, getattr(torch, dtype))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="1,2,4,8,16,32,64,128,256,512,1024,2048,4096,8192")
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float16"])
    parser.add_argument("--layers", default=",".join(LAYERS))
    parser.add_argument("--search", action="store_true", help="try many Triton tilings")
    parser.add_argument("--jobs", type=int, default=14, help="processes that compile for --search")
    parser.add_argument("--triton", action="store_true", help="leave CUTLASS out")
    arguments = parser.parse_args()
    if unknown := [name for name in arguments.layers.split(",") if name not in LAYERS]:
        parser.error(f"--layers: there is no {', '.join(unknown)}, only {', '.join(LAYERS)}")
    if not torch.cuda.is_available():
        parser.error("this needs an NVIDIA GPU")
    dtype, gpu = getattr(torch, arguments.dtype), describe(DEVICE)
    library = Library(Kernels.triton if arguments.triton else Kernels.cutlass, gpu, dtype)
    tiles = 0 if arguments.triton else len(TILES[gpu.capability])
    library.load()
    print(torch.cuda.get_device_name(), gpu, *library.built, sep="\n")
    sizes = list(map(int, arguments.rows.split(",")))
    if arguments.search:
        todo = [
            (name, rows, arguments.dtype, tiling)
            for name in arguments.layers.split(",")
            for rows in sizes
            for tiling in dict.fromkeys(candidates(Product(*LAYERS[name]), rows, gpu, 0, True))
        ]
        with ProcessPoolExecutor(arguments.jobs, multiprocessing.get_context("spawn")) as pool:
            list(pool.map(compile_one, todo))
    for name in arguments.layers.split(","):
        operation, outputs, terms = LAYERS[name]
        product = Product(operation, outputs, terms)
        made, full = layers(product, dtype, library), layers(product, dtype, None)
        for rows in sizes:
            usual, whole = microseconds(made, product, rows, dtype), microseconds(full, product, rows, dtype)
            work = 2 * rows * product.weight_rows * terms
            print(f"{name} {rows}: {usual:.1f} us ({work / usual / 1e6:.0f} TOPS), {dtype} {whole:.1f} us", flush=True)
            found = []
            for tiling in dict.fromkeys(candidates(product, rows, gpu, tiles, arguments.search)):
                undo = forced(made, tiling)
                try:
                    found.append((microseconds(made, product, rows, dtype), tiling))
                except Exception as error:  # a tiling that does not fit is no candidate
                    print(f"    {tiling}: {str(error)[:100]}")
                finally:
                    undo()
            for time, tiling in sorted(found, key=lambda entry: entry[0])[:5]:
                print(f"    {time:8.1f} us {tiling}", flush=True)
        del made, full


if __name__ == "__main__":
    main()
