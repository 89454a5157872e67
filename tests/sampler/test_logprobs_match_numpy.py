"""Log-probabilities are a log-softmax of the raw logits, whatever the sampling parameters do."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pymllm.engine.sampler import SamplingBatch, prompt_logprobs, sample

CPU = torch.device("cpu")
V = 400


def log_softmax(logits: torch.Tensor) -> np.ndarray:
    table = logits.double().numpy()
    shifted = table - table.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def ranked(row: np.ndarray) -> list[int]:
    return np.lexsort((np.arange(len(row)), -row)).tolist()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_of_a_batch_get_what_each_asked_for(make_row, dtype: torch.dtype):
    logits = (torch.randn(5, V, generator=torch.Generator().manual_seed(0)) * 4).to(dtype)
    rows = [
        make_row(logprobs=3, temperature=0.3, top_k=5),
        make_row(),
        make_row(logprobs=0, temperature=0.0),
        make_row(logprobs=100, seed=3, logit_bias={9: 100.0}, repetition_penalty=2.0, prompt=[9, 10]),
        make_row(temperature=0.0),
    ]
    tokens, entries = sample(logits, SamplingBatch.build(rows, V, CPU)).to_host()
    reference = log_softmax(logits)
    assert [entry is None for entry in entries] == [False, True, False, False, True]
    assert tokens[3] == 9
    for index, count in ((0, 3), (2, 0), (3, 100)):
        entry = entries[index]
        assert entry.logprob == pytest.approx(reference[index, tokens[index]], abs=1e-5)
        assert list(entry.top) == ranked(logits[index].float().numpy())[:count]
        assert list(entry.top.values()) == pytest.approx(reference[index, list(entry.top)].tolist(), abs=1e-5)


def test_equal_logits_rank_by_id_whatever_else_is_in_the_batch(make_row):
    logits = torch.zeros(2, V)
    logits[:, 50:60] = 1.0
    logits[:, 70] = -0.0
    alone = sample(logits[:1], SamplingBatch.build([make_row(logprobs=12)], V, CPU)).to_host()[1][0]
    beside = sample(logits, SamplingBatch.build([make_row(logprobs=12), make_row(logprobs=90)], V, CPU)).to_host()[1]
    assert list(alone.top) == list(beside[0].top) == [*range(50, 60), 0, 1]
    assert list(beside[1].top) == [*range(50, 60), *range(50), *range(60, 90)]


def test_prompt_logprobs():
    logits = torch.randn(300, V, generator=torch.Generator().manual_seed(1)) * 3
    targets = torch.randint(0, V, (300,), generator=torch.Generator().manual_seed(2))
    reference = log_softmax(logits)
    entries = prompt_logprobs(logits, targets, 4)
    assert len(entries) == 300
    for index, entry in enumerate(entries):
        assert entry.logprob == pytest.approx(reference[index, targets[index]], abs=1e-5)
        assert list(entry.top) == ranked(logits[index].numpy())[:4]
    assert [entry.top for entry in prompt_logprobs(logits[:2], targets[:2], 0)] == [{}, {}]
    assert prompt_logprobs(logits[:0], targets[:0], 3) == []
