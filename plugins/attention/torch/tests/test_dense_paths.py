"""Both ways to multiply on a CPU give the reference's result, whatever this CPU would choose."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pymllm_attention_torch.dense import FEW_KEYS, MatrixAttention, fold, unfold


def reference(q: np.ndarray, k: np.ndarray, v: np.ndarray, scale: float, masked: int) -> np.ndarray:
    scores = scale * q @ k.transpose(0, 2, 1)
    scores[:, :, k.shape[1] - masked :] = -np.inf
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ v


@pytest.mark.parametrize("split", [False, True], ids=["widened", "split"])
@pytest.mark.parametrize("scale", [0.25, 0.3], ids=["power of two", "any scale"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_result(dtype: torch.dtype, scale: float, split: bool) -> None:
    generator = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(2, rows, 64, generator=generator).to(dtype) for rows in (5, 1100, 1100))
    assert k.numel() >= FEW_KEYS
    bias = torch.full((1, 1, 7), float("-inf"))
    found = MatrixAttention(torch.device("cpu"), split=split)(q * 4, k, v, bias, scale)
    expected = reference((q * 4).double().numpy(), k.double().numpy(), v.double().numpy(), scale, 7)
    limit = {torch.bfloat16: 8e-3, torch.float16: 1e-3, torch.float32: 1e-5}[dtype]
    assert found.dtype == dtype
    np.testing.assert_allclose(found.double().numpy(), expected, rtol=0, atol=limit * np.abs(expected).max())


def test_folding_puts_the_heads_of_a_kv_head_side_by_side() -> None:
    q = torch.arange(2 * 6 * 1).view(2, 6, 1)  # token t, head h: 6 t + h
    folded = fold(q, 2)
    assert folded.flatten(1).tolist() == [[0, 1, 2, 6, 7, 8], [3, 4, 5, 9, 10, 11]]
    assert torch.equal(unfold(folded, 2), q)
