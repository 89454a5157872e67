"""The counts that penalties are computed from live on the device, ahead of the host. They are those of a request's
tokens when it samples, whatever happens: preemption, aborts, steps that fail and are done again, steps in flight that
are thrown away."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest
import torch

from pymllm.engine.batch import sample_rows
from pymllm.engine.engine import Engine
from pymllm.engine.kernels.layout import BIAS, COUNTS, IN_PROMPT, ROWS
from pymllm.engine.kernels.parameters import Packer
from pymllm.engine.messages import EngineRequest
from pymllm.engine.plan import ItemResult, StepItem, StepPlan
from pymllm.engine.sample_row import row_constants
from pymllm.interfaces.cache import CacheContext
from pymllm.sampling import SamplingParams
from pymllm_cache_radix.plugin import pymllm_cache as radix
from simulated import VOCAB, SimulatedRunner, answer, info

KINDS = [
    {},
    {"repetition_penalty": 1.2},
    {"presence_penalty": 0.5, "frequency_penalty": 0.5},
    {"min_tokens": 3, "stop_token_ids": [VOCAB + 1]},
    {"min_tokens": 2, "repetition_penalty": 0.9, "logit_bias": {1: 1.0}},
]


class EditingRunner(SimulatedRunner):
    """Keeps edits as a CUDA runner does. What a kernel does, counting the token that it draws, is done here in a line.
    faulty: how likely a step fails, in each place where it can."""

    def __init__(self, page_size: int, budget: int, rng: random.Random, faulty: float) -> None:
        super().__init__(page_size, budget)
        self._packer = Packer(VOCAB, torch.device("cpu"))
        self._rng = rng
        self._faulty = faulty
        self.faults = self.checked = self.ahead = 0
        self.wrong: list[str] = []  # not raised: an engine takes that for a failed step

    def launch(self, plan: StepPlan) -> Callable[[], list[ItemResult]]:
        self._stumble()
        items = [item for item in plan.items if item.samples]
        rows = sample_rows(items)
        positions = np.array([item.answer_index for item in items], dtype=np.int64)
        table = np.full((ROWS, max(len(items), 1)), -1, dtype=np.int64)
        try:
            self._packer.pack(table, rows, row_constants(rows), positions)
        except Exception as error:
            self.wrong.append(repr(error))
            raise
        for column, item in enumerate(items):
            self._check_edits(item, table[:, column])
        self._stumble()
        wait = super().launch(plan)
        for item, result in zip(plan.items, wait()):
            if item.samples and item.request.row.penalized:
                item.request.row.edits.counts[result.token] += 1
        self._stumble()
        if self._rng.random() < self._faulty:
            return self._fail
        return wait

    def _check_edits(self, item: StepItem, cells: np.ndarray) -> None:
        row, tokens = item.request.row, self._tokens(item)
        wanted = [
            tokens[row.prompt_length :].count(t) + IN_PROMPT * (t in tokens[: row.prompt_length]) for t in range(VOCAB)
        ]
        biased = item.answer_index < row.params.min_tokens or bool(row.params.logit_bias)
        if row.penalized and row.edits.counts.tolist() != wanted:
            self.wrong.append(f"{item.request.spec.id} has {row.edits.counts.tolist()}, not {wanted}")
        if cells[COUNTS] != -1:  # something in the batch is edited
            places = (row.edits.counts.data_ptr() if row.penalized else 0, row.edits.bias.data_ptr() if biased else 0)
            if (cells[COUNTS], cells[BIAS]) != places:
                self.wrong.append(f"{item.request.spec.id} has edits at {cells[[COUNTS, BIAS]]}, not {places}")
        elif row.penalized or biased:
            self.wrong.append(f"{item.request.spec.id} has no edits")
        self.checked += row.penalized
        self.ahead += row.penalized and len(tokens) > len(item.request.tokens)

    def _stumble(self) -> None:
        if self._rng.random() < self._faulty:
            self._fail()

    def _fail(self) -> list[ItemResult]:
        self.faults += 1
        raise RuntimeError("a step failed")


def _request(name: str, prompt: list[int], count: int, params: dict) -> EngineRequest:
    sampling = SamplingParams(max_tokens=count, temperature=0.0, ignore_eos=True, **params).with_defaults({})
    return EngineRequest(id=name, token_ids=prompt, sampling=sampling)


@pytest.mark.parametrize("faulty", [0.0, 0.03], ids=["sound", "faulty"])
@pytest.mark.parametrize("overlap", [False, True], ids=["serial", "overlap"])
def test_random_traffic(overlap: bool, faulty: float) -> None:
    preemptions = faults = ahead = checked = aborted = 0
    for seed in range(20):
        rng = random.Random(seed)
        page_size, pages = rng.choice([(1, 40), (2, 18), (4, 9)])
        budget = rng.choice([2, 5, 16])
        facts = info(pages=pages, page_size=page_size, budget=budget, max_running=4)
        policy = radix().load_factory()(radix().config(page_size=page_size), CacheContext(page_size, pages))
        runner = EditingRunner(page_size, budget, rng, faulty)
        engine = Engine(facts, runner, policy, seed=0, overlap=overlap)
        asked: dict[str, tuple[list[int], int]] = {}
        found: dict[str, list[int]] = {}
        ends: dict[str, str] = {}
        for step in range(400):
            if step < 150 and rng.random() < 0.3:
                prompt, count = [rng.randrange(VOCAB) for _ in range(rng.randint(1, 9))], rng.randint(3, 12)
                name = str(step)
                asked[name], found[name] = (prompt, count), []
                engine.submit(_request(name, prompt, count, rng.choice(KINDS)))
            if rng.random() < 0.05 and len(ends) < len(asked):
                engine.abort(rng.choice([name for name in asked if name not in ends]))
            for output in engine.step():
                found[output.id] += output.token_ids
                if output.finish_reason is not None:
                    ends[output.id] = output.finish_reason
        assert not runner.wrong
        assert not engine.has_work
        assert set(ends) == set(asked)
        for name, (prompt, count) in asked.items():
            assert found[name] == answer(prompt, count)[: len(found[name])]
            assert ends[name] != "length" or len(found[name]) == count
        assert set(ends.values()) <= {"length", "abort"} | ({"error"} if faulty else set())
        preemptions += engine.stats().total_preemptions
        faults, ahead, checked = faults + runner.faults, ahead + runner.ahead, checked + runner.checked
        aborted += list(ends.values()).count("abort")
    assert min(preemptions, checked, aborted) > 50
    assert (ahead > 100) == overlap
    assert (faults > 50) == bool(faulty)
