"""On a GPU the same rows draw the same tokens as on a CPU, and nothing waits for the device."""

from __future__ import annotations

import pytest
import torch

from pymllm.engine.sampler import SamplingBatch, sample

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
V = 20_000


def test_same_tokens_without_a_synchronization(make_row):
    kinds = [
        {"temperature": 0.0},
        {"temperature": 0.8},
        {"top_p": 0.9, "logprobs": 3},
        {
            "top_k": 50,
            "top_p": 0.9,
            "repetition_penalty": 1.1,
            "presence_penalty": 0.2,
            "prompt": [1, 2],
            "output": [3],
        },
        {"top_k": 5000, "min_p": 0.01, "logit_bias": {5: 1.0}},
        {"min_tokens": 3, "ends": [5, 6]},
    ]
    rows = [make_row(seed=i, **kinds[i % len(kinds)]) for i in range(60)]
    logits = torch.randn(60, V, generator=torch.Generator().manual_seed(0)) * 3
    logits[7, 5] = torch.nan
    want = sample(logits, SamplingBatch.build(rows, V, torch.device("cpu")))
    on_gpu = logits.cuda()
    sample(on_gpu, SamplingBatch.build(rows, V, on_gpu.device))  # first use loads kernels, which may wait
    torch.cuda.set_sync_debug_mode("error")
    try:
        got = sample(on_gpu, SamplingBatch.build(rows, V, on_gpu.device))  # the same position: tokens are counted again
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert got.tokens.cpu().tolist() == want.tokens.tolist()
    assert got.valid.cpu().tolist() == want.valid.tolist()
    torch.testing.assert_close(got.logprobs.values.cpu(), want.logprobs.values, rtol=1e-5, atol=1e-5, equal_nan=True)
