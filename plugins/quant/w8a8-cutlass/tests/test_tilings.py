"""Whatever a product's sizes are, its tiling fits the device, and a cut sum has counters enough."""

from __future__ import annotations

import itertools

import pytest

from pymllm_quant_w8a8_cutlass.tiles import TILES
from pymllm_quant_w8a8_cutlass.tilings import CUTLASS_ROWS, GPU, Product, bucket, choose, cutlass_tile

GPUS = [GPU(132, 227 * 1024, (9, 0)), GPU(16, 163 * 1024, (8, 7)), GPU(128, 99 * 1024, (8, 9))]
SIZES = list(itertools.product([8, 256, 1025, 6144, 151936], [16, 576, 2560, 9728, 40960]))


@pytest.mark.parametrize("gpu", GPUS, ids=str)
@pytest.mark.parametrize("operation", ["plain", "gated"])
def test_tilings_fit(gpu: GPU, operation: str) -> None:
    for (outputs, terms), rows in itertools.product(SIZES, [1, 2, 17, 64, 65, 128, 129, 513, 8192]):
        product = Product(operation, outputs, terms)  # type: ignore[arg-type]
        tiling = choose(product, rows, gpu, cutlass=False)
        if tiling.kernel == "gemv":
            assert rows == 1
            assert bucket(terms // 4) * tiling.block_n <= 16 * 1024, "words in registers"
            continue
        assert tiling.kernel == "dot"
        # wgmma and mma take 32 integers at a time, and no block is smaller than 16.
        assert min(tiling.block_m, tiling.block_n) >= 16
        assert tiling.block_k % 32 == 0
        assert tiling.stages * tiling.block_k * (tiling.block_m + tiling.block_n) <= gpu.shared_memory
        if tiling.split > 1:
            width = tiling.block_n // 2 if operation == "gated" else tiling.block_n
            blocks = -(-outputs // width) * -(-rows // tiling.block_m)
            assert blocks <= gpu.processors, "layers have a counter for each multiprocessor"


@pytest.mark.parametrize("gpu", GPUS, ids=str)
def test_cutlass_serves_many_rows_where_it_can(gpu: GPU) -> None:
    product = Product("plain", 6144, 2560)
    assert choose(product, CUTLASS_ROWS + 1, gpu, cutlass=True).kernel == "cutlass"
    assert choose(product, CUTLASS_ROWS, gpu, cutlass=True).kernel == "dot"
    assert choose(product, 8192, gpu, cutlass=False).kernel == "dot"


@pytest.mark.parametrize("gpu", GPUS, ids=str)
def test_larger_tiles_serve_more_rows_and_leave_no_multiprocessor_idle(gpu: GPU) -> None:
    tiles = TILES[gpu.capability]
    for outputs in (1024, 2560, 6144, 19456):
        product = Product("plain", outputs, 2560)
        chosen = [cutlass_tile(product, rows, gpu) for rows in (65, 128, 512, 2048, 8192, 32768)]
        assert chosen == sorted(chosen), "no more rows have a smaller tile"
        assert chosen[-1] > 0
        for number, rows in zip(chosen, (65, 128, 512, 2048, 8192, 32768)):
            programs = -(-rows // tiles[number].m) * -(-outputs // tiles[number].n)
            assert number == 0 or programs >= gpu.processors
