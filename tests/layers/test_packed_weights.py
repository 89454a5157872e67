"""Packed weights compute what plain ones do, for every shape of input, and are counted as the memory they are."""

from __future__ import annotations

import pytest
import torch

from pymllm.layers import Embedding, TiedHead
from pymllm.layers.packed import pack, stand_in


@pytest.mark.parametrize("dtype, rounding", [(torch.float32, 2**-24), (torch.bfloat16, 2**-8)], ids=str)
@pytest.mark.parametrize("rows", [0, 1, 3, 64])
@pytest.mark.parametrize("bias", [False, True])
def test_products_equal_the_exact_ones(dtype: torch.dtype, rounding: float, rows: int, bias: bool) -> None:
    weight, x = torch.randn(70, 48).to(dtype), torch.randn(rows, 48).to(dtype)
    added = torch.randn(70).to(dtype) if bias else None
    packed = pack(weight)
    if packed is None:
        pytest.skip("this CPU or build of PyTorch does not pack weights")
    exact = x.double() @ weight.double().T + (0 if added is None else added.double())
    y = packed(x, added)
    assert (y.dtype, tuple(y.shape)) == (dtype, (rows, 70))
    # A sum of n products in float32 errs by at most n 2^-24 times the sum of their sizes; then y is rounded once.
    sizes = x.double().abs() @ weight.double().abs().T + (0 if added is None else added.double().abs())
    assert ((y - exact).abs() <= rounding * exact.abs() + 50 * 2**-24 * sizes).all()


def test_strided_inputs_are_read_right() -> None:
    packed = pack(torch.eye(8))
    if packed is None:
        pytest.skip("this CPU or build of PyTorch does not pack weights")
    wide = torch.arange(48.0).view(3, 16)
    assert torch.equal(packed(wide[:, :8]), wide[:, :8])
    assert torch.equal(packed(wide.T.contiguous().T[:, 8:]), wide[:, 8:])


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_other_dtypes_are_not_packed(dtype: torch.dtype) -> None:
    assert pack(torch.randn(8, 8).to(dtype)) is None


def test_a_stand_in_counts_but_takes_no_memory() -> None:
    weight = torch.randn(100, 50)
    copy = stand_in(weight)
    assert (copy.shape, copy.dtype, copy.untyped_storage().nbytes()) == (weight.shape, weight.dtype, 4)
    assert copy.isnan().all()


def test_a_tied_head_leaves_the_embedding_readable() -> None:
    embedding = Embedding(20, 8, dtype=torch.float32, device=torch.device("cpu"))
    embedding.weight.normal_()
    kept = embedding.weight.clone()
    head = TiedHead(embedding)
    head.finalize()
    head.finalize()
    assert torch.equal(embedding(torch.arange(20)), kept)
    torch.testing.assert_close(head(torch.eye(8)), kept.T)
