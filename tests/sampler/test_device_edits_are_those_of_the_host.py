"""Edits that live on the device change logits to the bit as those of the host do, also when the host lags behind."""

from __future__ import annotations

import gc
import os
import weakref

import numpy as np
import pytest
import torch

from pymllm.engine.kernels.edits import EditTables
from pymllm.engine.kernels.layout import BIAS, COUNTS, ROWS, Need
from pymllm.engine.kernels.parameters import Packer, RowParameters
from pymllm.engine.logit_edits import LogitEdits
from pymllm.engine.sample_row import row_constants

triton = pytest.importorskip("triton")
tl = pytest.importorskip("triton.language")
scores = pytest.importorskip("pymllm.engine.kernels.scores")
edits_of, read_scores = scores.edits_of, scores.read_scores

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
pytestmark = [] if INTERPRETED else [pytest.mark.gpu]
DEVICE = torch.device("cpu" if INTERPRETED else "cuda")
CPU = torch.device("cpu")
V = 300
KINDS = [
    {"repetition_penalty": 1.7},
    {"presence_penalty": 1.1, "frequency_penalty": 0.7},
    {},
    {"repetition_penalty": 0.6, "frequency_penalty": -0.3, "logit_bias": {4: 2.0, 299: -3.3}},
    {"min_tokens": 4, "ends": [3, 5, 3, V + 7]},
    {"min_tokens": 5, "ends": [4], "logit_bias": {4: 50.0, 0: 1 / 3}},
    {"min_tokens": 6, "ends": [1, 2], "repetition_penalty": 1.3, "presence_penalty": 1 / 3, "frequency_penalty": 0.1},
]


class Device:
    """A batch's tables, kept from step to step as a runner keeps them."""

    def __init__(self) -> None:
        self.packer = Packer(V, DEVICE)

    def parameters(self, rows) -> RowParameters:
        host = np.zeros((ROWS, len(rows)), dtype=np.int64)
        positions = np.array([row.position for row in rows])
        need = self.packer.pack(host, rows, row_constants(rows), positions)
        return RowParameters(torch.from_numpy(host).to(DEVICE), need)

    def step(self, rows, logits) -> list[int]:
        """Draw a token of each row, which then waits for the next; only the device knows the token."""
        tokens, _ = self.parameters(rows).draw(logits.to(DEVICE))
        for row in rows:
            row.position += 1
        return tokens.tolist()


def _rows(make_row, **more):
    return [
        make_row(**{"temperature": 0.0, "prompt": [1, 1, 2, 40 + i, -1, V], "output": [3, 3, V + 1], **kind, **more})
        for i, kind in enumerate(KINDS)
    ]


def _logits(step: int) -> torch.Tensor:
    logits = torch.randn(len(KINDS), V, generator=torch.Generator().manual_seed(step)) * 4
    logits[:, :6] += 3  # so that edits matter
    logits[1, 9], logits[3, 10], logits[0, 11] = torch.nan, -torch.inf, 0.0
    return logits


@triton.jit
def _copy_scores(logits, table, width, out, V, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    ids = tl.arange(0, BLOCK)
    bias, counts = edits_of(table, width, row, True)
    tl.store(out + row * V + ids, read_scores(logits, V, table, width, row, ids, V, bias, counts), mask=ids < V)


def test_every_score_to_the_bit(make_row):
    rows = _rows(make_row)
    table = Device().parameters(rows).table
    for step in range(3):
        logits = _logits(step)
        out = torch.empty(len(rows), V, device=DEVICE)
        _copy_scores[(len(rows),)](logits.to(DEVICE), table, len(rows), out, V, BLOCK=512, enable_fp_fusion=False)
        want = LogitEdits.collect(rows, V, CPU).apply(logits)
        assert want.isinf().any()
        torch.testing.assert_close(out.cpu(), want, rtol=0, atol=0, equal_nan=True)


def test_the_same_tokens_step_by_step(make_row):
    """The host's lists of the lagging rows stay as they were; masks end on the way."""
    informed, lagging, device = _rows(make_row), _rows(make_row), Device()
    for step in range(4):
        logits = _logits(step).nan_to_num(nan=1.0)
        want = LogitEdits.collect(informed, V, CPU).apply(logits).argmax(-1).tolist()
        assert device.step(lagging, logits) == want
        for row, token in zip(informed, want):
            row.tokens.append(token)
            row.position += 1


@pytest.mark.parametrize("params", [{}, {"top_p": 0.9}], ids=["whole", "truncated"])
def test_draws_are_counted_like_greedy_choices(make_row, params):
    """Hand-worked: of three equal tokens, a frequency penalty of 2 at a temperature near 0 takes each once before it
    takes any a second time, in whatever order."""
    logits = torch.full((1, V), -100.0)
    logits[0, [7, 99, 299]] = 1.0
    row, device = make_row(seed=3, temperature=0.01, frequency_penalty=2.0, **params), Device()
    taken = [device.step([row], logits)[0] for _ in range(6)]
    assert sorted(taken[:3]) == sorted(taken[3:]) == [7, 99, 299]


def test_a_thrown_away_token_is_forgotten(make_row):
    row = make_row(temperature=0.0, frequency_penalty=2.0)
    device, logits = Device(), torch.zeros(1, V)
    for _ in range(3):
        row.position = 0
        assert device.step([row], logits) == [0]
    assert device.step([row], logits) == [1]
    row.tokens.append(7)  # what came of the first in the end
    row.position = 1
    assert device.step([row], logits) == [0]
    assert device.step([row], logits) == [1]


def test_a_token_of_broken_logits_is_not_counted(make_row):
    row = make_row(temperature=0.0, frequency_penalty=2.0)
    device = Device()
    assert device.step([row], torch.full((1, V), torch.nan)) == [0]
    assert row.edits.counts.tolist() == [0] * V


def test_memory_is_taken_when_needed_and_given_back(make_row):
    device, logits = Device(), torch.zeros(1, V)
    plain = make_row(temperature=0.0, top_p=0.5)
    device.step([plain], logits)
    assert plain.edits is None
    row = make_row(temperature=0.0, presence_penalty=1.0, output=[0])
    assert device.step([row], logits) == [1]
    kept = weakref.ref(row.edits.counts)
    assert (kept().shape, kept().dtype, row.edits.bias) == ((V,), torch.int32, None)
    del row
    gc.collect()
    assert kept() is None


def test_requests_with_the_same_bias_share_it(make_row):
    tables = EditTables(V, DEVICE)
    rows = [make_row(min_tokens=2, ends=[3, 4]) for _ in range(3)] + [make_row(logit_bias={3: 1.0})]
    biases = [tables.ready(row, 0).bias for row in rows]
    assert biases[0] is biases[1] is biases[2] is not biases[3]
    assert biases[0].nonzero().flatten().tolist() == [3, 4]
    assert tables.ready(rows[0], 2).bias is None  # its mask is over
    assert tables.ready(rows[0], 1).bias is biases[1]  # preempted, and a token back
    assert tables.ready(rows[3], 5).bias is biases[3]


def test_rows_without_edits_have_no_addresses(make_row):
    rows = [make_row(), make_row(presence_penalty=1.0), make_row(logit_bias={1: 1.0}), make_row(top_k=5)]
    host = np.full((ROWS, 4), 99, dtype=np.int64)
    packer = Packer(V, DEVICE)
    assert packer.pack(host, rows, row_constants(rows), np.zeros(4, dtype=np.int64)) is Need.edited
    assert host[[BIAS, COUNTS]].astype(bool).tolist() == [[False, False, True, False], [False, True, False, False]]
