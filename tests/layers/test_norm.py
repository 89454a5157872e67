"""RMS norm: its values in float64, and its rounding order as in transformers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from pymllm.layers import RMSNorm


def norm_of(size: int, eps: float, dtype: torch.dtype) -> RMSNorm:
    norm = RMSNorm(size, eps, dtype=dtype, device=torch.device("cpu"))
    norm.weight.copy_(torch.rand(size) + 0.5)
    return norm


def test_values_follow_the_formula() -> None:
    norm, x = norm_of(96, 1e-2, torch.float32), torch.randn(7, 3, 96)
    values = x.double().numpy()
    expected = values / np.sqrt((values**2).mean(-1, keepdims=True) + 1e-2) * norm.weight.double().numpy()
    np.testing.assert_allclose(norm(x).numpy(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_rounding_is_transformers(dtype: torch.dtype) -> None:
    norm, x = norm_of(576, 1e-5, dtype), torch.randn(40, 576, dtype=dtype)
    reference = LlamaRMSNorm(576, eps=1e-5)
    reference.weight.data = norm.weight.data
    # The quotient's last float32 bit may differ and now and then cross a rounding boundary; multiplying
    # before rounding, as F.rms_norm with a weight does, differs in a fifth of the values.
    assert (norm(x) == reference(x)).float().mean() > 0.99
    torch.testing.assert_close(norm(x), reference(x))


def test_large_half_precision_values_do_not_overflow() -> None:
    norm = RMSNorm(8, 1e-6, dtype=torch.float16, device=torch.device("cpu"))
    norm.weight.fill_(1)
    assert torch.equal(norm(torch.full((1, 8), 3e4, dtype=torch.float16)), torch.ones(1, 8, dtype=torch.float16))
