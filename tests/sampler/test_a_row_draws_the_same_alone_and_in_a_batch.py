"""A draw depends on the row's logits, parameters, seed and position alone."""

from __future__ import annotations

import torch

from pymllm.engine.sampler import SamplingBatch, sample

CPU = torch.device("cpu")
V = 1500
POSITIONS = 200
PARAMS = [
    {"temperature": 0.9},
    {"temperature": 0.0},
    {"top_p": 0.9},
    {"temperature": 2.0, "top_p": 0.95},
    {"top_k": 20, "top_p": 0.8, "repetition_penalty": 1.2, "prompt": [1, 2, 3], "output": [4]},
    {"top_k": 1000},
    {"min_p": 0.02, "logprobs": 2},
    {"top_k": 100, "min_p": 0.001, "logit_bias": {7: 3.0}},
]


def tokens(logits: torch.Tensor, rows: list) -> list[int]:
    return sample(logits, SamplingBatch.build(rows, V, CPU)).tokens.tolist()


def test_for_200_positions_among_32_rows_in_any_order(make_row):
    generator = torch.Generator().manual_seed(0)
    rows = [make_row(seed=100 + i, **PARAMS[i % len(PARAMS)]) for i in range(32)]
    together, backwards = [], []
    alone: dict[int, list[int]] = {i: [] for i in range(len(PARAMS))}
    for position in range(POSITIONS):
        # bfloat16 makes many equal logits, as real models do.
        logits = (torch.randn(32, V, generator=generator) * 2).bfloat16()
        for row in rows:
            row.position = position
        together.append(tokens(logits, rows))
        backwards.append(tokens(logits.flip(0), rows[::-1])[::-1])
        for i in alone:
            alone[i] += tokens(logits[i : i + 1], [rows[i]])
    assert together == backwards
    for i, picks in alone.items():
        assert picks == [step[i] for step in together]
    assert len({tuple(column) for column in zip(*together)}) == 32


def test_the_same_seed_repeats_and_another_differs(make_row):
    logits = torch.randn(1, V, generator=torch.Generator().manual_seed(1)).expand(64, -1)
    runs = [tokens(logits, [make_row(seed=seed, position=p) for p in range(64)]) for seed in (5, 5, 6)]
    assert runs[0] == runs[1] != runs[2]


def test_candidates_and_the_whole_vocabulary_give_the_same_token(draw_at):
    """Where candidates suffice, where they do not, and where equal logits straddle their end."""
    generator = torch.Generator().manual_seed(2)
    numbers = torch.rand(40, generator=generator, dtype=torch.float64)
    for spread in (0.3, 2.0, 6.0):
        logits = torch.randn(V, generator=generator) * spread
        for table in (logits, logits.bfloat16(), logits.round()):
            for params in ({"top_p": 0.9}, {"top_p": 0.5, "min_p": 0.1}, {"top_k": 150}, {"top_k": 192, "top_p": 0.7}):
                quick = draw_at(table, numbers, **params)
                assert quick.tolist() == draw_at(table, numbers, select=True, **params).tolist()
