"""logit_bias, penalties and the min_tokens mask, against float64 NumPy and transformers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import RepetitionPenaltyLogitsProcessor

from pymllm.engine.sampler import SamplingBatch, sample

CPU = torch.device("cpu")
V = 50


def expected(logits: np.ndarray, row) -> np.ndarray:
    """One row, in the order of the docs, by loops over token ids."""
    params, scores = row.params, logits.astype(np.float64).copy()
    answer = row.tokens[row.prompt_length :]
    for token, bias in (params.logit_bias or {}).items():
        scores[token] += bias
    for token in set(row.tokens):
        positive = scores[token] > 0
        scores[token] = (
            scores[token] / params.repetition_penalty if positive else scores[token] * params.repetition_penalty
        )
    for token in range(len(scores)):
        count = answer.count(token)
        scores[token] -= count * params.frequency_penalty + (count > 0) * params.presence_penalty
    if row.position < params.min_tokens:
        scores[list(row.end_token_ids)] = -np.inf
    return scores


def edited(logits: torch.Tensor, rows: list) -> torch.Tensor:
    return SamplingBatch.build(rows, logits.shape[1], CPU).edits.apply(logits)


def test_every_edit_alone_and_all_together_in_one_batch(make_row):
    generator = np.random.default_rng(0)
    ids = {"prompt": [3, 3, 4, 9, 20], "output": [4, 7, 7, 7, 21, 4], "position": 6, "ends": [1, 2]}
    rows = [
        make_row(**ids, logit_bias={0: 100.0, 5: -100.0, 49: 0.5}),
        make_row(**ids, repetition_penalty=1.7),
        make_row(**ids),
        make_row(**ids, presence_penalty=1.25),
        make_row(**ids, frequency_penalty=-0.75),
        make_row(**ids, min_tokens=7),
        make_row(**ids, min_tokens=6),
        make_row(
            **ids,
            logit_bias={4: 1.5, 1: 50.0, 3: -2.0},
            repetition_penalty=0.6,
            presence_penalty=-0.5,
            frequency_penalty=0.3,
            min_tokens=100,
        ),
    ]
    logits = torch.from_numpy(generator.normal(size=(len(rows), V)).astype(np.float32) * 4)
    before = logits.clone()
    got = edited(logits, rows).numpy()
    assert torch.equal(logits, before)
    for index, row in enumerate(rows):
        np.testing.assert_allclose(got[index], expected(before[index].numpy(), row), rtol=1e-5, atol=1e-5)


def test_repetition_penalty_is_that_of_transformers(make_row):
    logits = torch.randn(1, V, generator=torch.Generator().manual_seed(1)) * 5
    prompt, output = [1, 2, 3, 3], [3, 10, 11]
    got = edited(logits, [make_row(prompt=prompt, output=output, position=3, repetition_penalty=1.3)])
    want = RepetitionPenaltyLogitsProcessor(1.3)(torch.tensor([prompt + output]), logits.clone())
    torch.testing.assert_close(got, want)


def test_history_follows_a_growing_answer(make_row):
    """A row that lives through an answer counts as one built afresh at each step."""
    logits = torch.randn(1, V, generator=torch.Generator().manual_seed(2))
    penalties = {"repetition_penalty": 1.2, "presence_penalty": 0.5, "frequency_penalty": 0.4}
    row = make_row(prompt=[5, 6], **penalties)
    for token in [7, 7, 5, 8, 7]:
        row.tokens.append(token)
        row.position += 1
        np.testing.assert_allclose(edited(logits, [row])[0], expected(logits[0].numpy(), row), rtol=1e-5, atol=1e-6)


def test_media_placeholders_outside_the_vocabulary_are_not_penalized(make_row):
    logits = torch.randn(2, V, generator=torch.Generator().manual_seed(3))
    row = make_row(prompt=[-1, V, V + 7, 4], output=[4], position=1, repetition_penalty=2.0)
    other = make_row(repetition_penalty=2.0, prompt=[8])
    got = edited(logits, [row, other])
    changed = (got != logits).nonzero().tolist()
    assert changed == [[0, 4], [1, 8]]


def test_bias_of_100_forces_and_forbids_a_greedy_token(make_row):
    logits = torch.randn(2, V, generator=torch.Generator().manual_seed(4))
    best = int(logits[1].argmax())
    runner_up = int(logits[1].topk(2).indices[1])
    rows = [make_row(temperature=0.0, logit_bias={17: 100.0}), make_row(temperature=0.0, logit_bias={best: -100.0})]
    assert sample(logits, SamplingBatch.build(rows, V, CPU)).tokens.tolist() == [17, runner_up]


def test_end_tokens_wait_for_min_tokens(make_row):
    logits = torch.zeros(1, V)
    logits[0, 2], logits[0, 9] = 8.0, 5.0
    picks = []
    for position in range(4):
        for temperature in (0.0, 0.01):
            row = make_row(temperature=temperature, min_tokens=2, ends=[2, 2, V + 3], position=position)
            picks += sample(logits, SamplingBatch.build([row], V, CPU)).tokens.tolist()
    assert picks == [9, 9, 9, 9, 2, 2, 2, 2]


@pytest.mark.parametrize("token", [V, V + 1000])
def test_bias_outside_the_vocabulary_reaches_no_other_row(make_row, token: int):
    with pytest.raises(ValueError, match="outside the vocabulary of 50"):
        SamplingBatch.build([make_row(logit_bias={token: 1.0}), make_row()], V, CPU)
