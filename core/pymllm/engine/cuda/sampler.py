"""Draws a step's tokens on the device, and sends them to the host, without waiting."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pymllm.engine.batch import sample_rows
from pymllm.engine.cuda.alias import alias
from pymllm.engine.cuda.graph import captured
from pymllm.engine.cuda.staging import Answer, StagedRows
from pymllm.engine.kernels import layout
from pymllm.engine.kernels.launch import Scratch, draw_rows
from pymllm.engine.kernels.layout import Need
from pymllm.engine.kernels.parameters import Packer
from pymllm.engine.logprobs import LogprobPlan, Logprobs
from pymllm.engine.plan import ItemResult, StepItem
from pymllm.engine.sample_row import row_constants

TOKEN, SLOT, POSITION, ROTARY = range(layout.ROWS, layout.ROWS + 4)
"""Rows of the staged inputs below those of :mod:`pymllm.engine.kernels.layout`: a decode's token (-1: the one that its
request sampled last), its request's slot, its position in the context, and the one that it is rotated by."""

INPUT_ROWS = ROTARY + 1


@dataclass(frozen=True)
class Ask:
    """What the sampled items of a step ask for. rows: how many they are. need: of the kernels. logprobs: None if no row
    wants any."""

    rows: int
    need: Need
    logprobs: LogprobPlan | None


class StepSampler:
    """The sampler of a runner, in static memory, for steps of at most ``most`` sampled rows.

    inputs: what a step sends in one copy, [INPUT_ROWS, most]. last_tokens: [slots + 1] int64, by request slot, what was
    sampled last; the last one is scrap, for padding.
    """

    def __init__(self, most: int, vocab_size: int, last_tokens: Tensor, device: torch.device) -> None:
        self.inputs = StagedRows(INPUT_ROWS, most, device)
        self._vocab_size = vocab_size
        self._device = device
        self._last_tokens = last_tokens
        self._packer = Packer(vocab_size, device)
        self._scratch = Scratch(most, vocab_size, device)
        self._results = torch.zeros(2, most + most % 2, dtype=torch.int64, device=device)
        self._logits: dict[int, Tensor] = {}
        self._replays: dict[tuple[int, Need], Callable[[], None]] = {}

    def capture(self, logits: Tensor, pool: Any) -> None:
        """Capture drawing from logits [size, V] that the graph captured before this one leaves. On a side stream."""
        size = len(logits)
        for need in Need:
            self._replays[size, need], _ = captured(pool, partial(self.draw, need, logits))
        self._logits[size] = alias(logits)

    def forget(self) -> None:
        """Drop what was captured."""
        self._replays.clear()
        self._logits.clear()

    def padded(self, rows: int) -> int:
        """Columns of the inputs to fill for a step that samples so many rows: the captured size that serves it."""
        return min((size for size in self._logits if size >= rows), default=rows)

    def ask(self, host: np.ndarray, items: list[StepItem], size: int = 0) -> Ask:
        """Write what items that sample ask for, and their slots, into ``inputs.next()``, padded to ``size`` columns;
        TOKEN and POSITION are left to the caller. The items' step must be launched next."""
        count = len(items)
        host[:, count:size] = 0
        host[SLOT, count:size] = len(self._last_tokens) - 1
        host[SLOT, :count] = [item.request.slot for item in items]
        rows = sample_rows(items)
        constants = row_constants(rows)
        ends = np.array([item.start + item.count for item in items], dtype=np.int64)
        need = self._packer.pack(host[: layout.ROWS], rows, constants, ends - constants["prompt_length"])
        wanted = [row.params.logprobs for row in rows] if constants["logprobs"].any() else []
        return Ask(count, need, LogprobPlan.collect(wanted, self._vocab_size, self._device))

    def draw(self, need: Need, logits: Tensor) -> None:
        """Choose a token of each row of logits [R, V] by the inputs that were sent, and keep it for the next step. Can
        be captured; rows past those asked for must be padding."""
        size, inputs = len(logits), self.inputs.device
        tokens = self._results[0, :size]
        draw_rows(logits, inputs[: layout.ROWS], need, tokens, self._results[1, :size], self._scratch)
        self._last_tokens.index_copy_(0, inputs[SLOT, :size], tokens)

    def replay(self, need: Need, size: int) -> Tensor:
        """The same from the logits [size, V] that were captured, which are returned."""
        self._replays[size, need]()
        return self._logits[size]

    def draw_by_graph(self, need: Need, logits: Tensor) -> None:
        """The same from logits that lie anywhere. The copy of them takes the device less time than a score of
        launches takes the host. Without a graph for so many rows, they are launched."""
        size = self.padded(len(logits))
        if size not in self._logits:
            return self.draw(need, logits)
        self._logits[size][: len(logits)].copy_(logits)
        self.replay(need, size)

    def answer(self, ask: Ask, logits: Tensor) -> Callable[[], list[ItemResult]]:
        """Send what was drawn from logits [>= rows, V] to the host; the call that is returned waits for it."""
        results = Answer(self._results[:, : ask.rows])
        if ask.logprobs is None:
            return lambda: _item_results(results)
        plan = ask.logprobs
        logprobs = plan.compute(logits[: ask.rows], self._results[0, : ask.rows])
        arriving = [Answer(tensor) for tensor in (logprobs.chosen, logprobs.values, logprobs.ids)]

        def wait() -> list[ItemResult]:
            found = _item_results(results)
            entries = Logprobs(*(answer.wait() for answer in arriving)).to_host(plan.tops)
            for row, entry in zip(plan.rows, entries):
                found[row].logprobs = entry
            return found

        return wait


def _item_results(results: Answer) -> list[ItemResult]:
    tokens, valid = results.wait().tolist()
    return [ItemResult(token, bool(ok)) for token, ok in zip(tokens, valid)]
