"""Which kernel serves a product: a measured choice first, then rules that fit the device; tables survive bad files."""

from __future__ import annotations

from pathlib import Path

import pytest

from pymllm.layers.kernels import LIBRARY, Tiling
from pymllm.layers.kernels.table import read_table, write_table
from pymllm.layers.kernels.tiling import GPU, Product, bucket, choose

H200, ORIN, ADA = GPU(132, 227 * 1024), GPU(16, 163 * 1024), GPU(58, 99 * 1024)
PRODUCTS = [
    Product("norm", 6144, 2560),
    Product("onto", 1024, 3072),
    Product("gated", 9728, 2560),
    Product("plain", 151936, 1024),
    Product("norm", 960, 576),
    Product("onto", 2560, 9728),
]


@pytest.mark.parametrize("gpu", [H200, ORIN, ADA], ids=str)
@pytest.mark.parametrize("product", PRODUCTS, ids=str)
@pytest.mark.parametrize("rows", [1, 2, 16, 17, 64])
def test_a_rule_fits_the_device_and_the_product(product: Product, gpu: GPU, rows: int) -> None:
    tiling = choose(product, rows, gpu, {})
    if rows == 1:
        assert tiling.kernel in ("gemv", "resident")
        assert tiling.kernel == "gemv" or product.in_features <= tiling.block_k
    else:
        assert tiling.kernel == "dot"
        tile = (tiling.block_n + max(16, bucket(rows))) * tiling.block_k * 2
        assert tiling.stages >= 2
        assert tiling.stages * tile < gpu.shared_memory
        assert (tiling.split - 1) * tiling.block_k < product.in_features, "every program has a part of the sum"


@pytest.mark.parametrize("rows", [0, 65, 8192])
def test_many_rows_are_the_librarys(rows: int) -> None:
    assert choose(PRODUCTS[0], rows, H200, {}) == LIBRARY


def test_a_measured_choice_goes_before_the_rule() -> None:
    measured = Tiling("dot", 64, 64, split=5)
    table = {"norm 6144x2560 8": measured}
    assert choose(PRODUCTS[0], 5, H200, table) == measured
    assert choose(PRODUCTS[0], 9, H200, table) != measured


def test_a_table_comes_back_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "a" / "table.json"
    table = {"plain 8x8 1": LIBRARY, "norm 8x8 2": Tiling("dot", 64, 128, 4, 3, 2)}
    write_table(path, table)
    assert read_table(path) == table
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"a": 3}', '{"a": {"kernel": "dot", "unknown": 1}}'])
def test_a_table_that_cannot_be_read_is_no_table(tmp_path: Path, text: str) -> None:
    path = tmp_path / "table.json"
    assert read_table(path) == {}
    path.write_text(text)
    assert read_table(path) == {}
